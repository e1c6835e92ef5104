"""A real Kafka Connect in standalone mode, to compare with."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deelog_connector.devkafka.jars import fetch
from deelog_connector.devkafka.java import find_java
from deelog_connector.devkafka.ports import free_port
from tests.connector.rest.client import Api

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
    """Until the end of the block; its log is `connect.log` in `folder`."""
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
            deadline = time.monotonic() + START_SECONDS
            while not _healthy(api):
                assert process.poll() is None, (folder / "connect.log").read_text()
                assert time.monotonic() < deadline, (folder / "connect.log").read_text()
                time.sleep(0.1)
            yield api
        finally:
            process.kill()
            process.wait()


def _healthy(api: Api) -> bool:
    try:
        return api.ask("GET", "/health").status == 200
    except OSError:
        return False
