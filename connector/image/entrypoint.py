"""The images' entry point: configuration from the environment, then `deelog` with the container's arguments.

In Kafka Connect's style `CONNECT_TOPIC_PREFIX=shop` is `topic.prefix=shop`; no field's name has another character
than letters, digits and dots. References such as `${env:NAME}` and `${file:…}` stay as they are: the program looks
them up. Weighed in docs/decisions.md, "A container's configuration is a file".

Without any CONNECT_ variable the arguments are all there is: `docker run … node --config FILE`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

PREFIX = "CONNECT_"
JARS = Path("/opt/spark-kafka/jars")


def main() -> None:
    """Becomes `deelog`."""
    arguments = sys.argv[1:]
    config = {
        name.removeprefix(PREFIX).lower().replace("_", "."): value
        for name, value in os.environ.items()
        if name.startswith(PREFIX)
    }
    if config and "--config" not in arguments:
        # The name is the process's own: containers may share a /tmp. mkstemp opens it for this user alone.
        number, path = tempfile.mkstemp(prefix="deelog-", suffix=".json")
        with os.fdopen(number, "w") as file:
            json.dump(config, file)
        arguments += ["--config", path]
    if JARS.is_dir():
        os.environ.setdefault("DEELOG_SPARK_JARS", ",".join(map(str, sorted(JARS.glob("*.jar")))))
    os.execvp("deelog", ["deelog", *arguments])


if __name__ == "__main__":
    main()
