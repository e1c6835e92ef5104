"""A real Kafka Connect in standalone mode, to compare with."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deelog_connector.devkafka.jars import fetch
from deelog_connector.devkafka.ports import free_port
from deelog_schemas.java import find_java
from tests.connector.rest.client import Api
from tests.support.waiting import waiting

START_SECONDS = 120.0
WORKER = """\
bootstrap.servers={bootstrap}
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
offset.storage.file.filename={folder}/offsets
offset.flush.interval.ms=500
listeners=http://127.0.0.1:{port}
plugin.path={folder}/plugins
plugin.discovery=service_load
"""


@contextmanager
def running_connect(folder: Path, bootstrap: str) -> Iterator[Api]:
    """Connect, which runs during the block. Its log is `connect.log` in `folder`."""
    port = free_port()
    (folder / "plugins").mkdir(parents=True)
    (folder / "worker.properties").write_text(WORKER.format(bootstrap=bootstrap, folder=folder, port=port))
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    classpath = ":".join(map(str, fetch("connect")))
    command = [str(find_java()), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classpath, main, "worker.properties"]
    with (folder / "connect.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            api = Api(port)

            def answers() -> bool:
                assert process.poll() is None, (folder / "connect.log").read_text()
                return api.is_healthy()

            waiting(answers, START_SECONDS, f"Kafka Connect; its log: {folder / 'connect.log'}")
            yield api
        finally:
            process.kill()
            process.wait()
