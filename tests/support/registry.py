"""A real schema registry for tests: Apicurio with its Confluent API, in a separate process, with data in memory."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from confluent_kafka.schema_registry import SchemaRegistryClient

from deelog_connector.devkafka import jars
from deelog_connector.devkafka.ports import HOST, free_port
from deelog_schemas.java import find_java
from tests.support.http import answers
from tests.support.waiting import waiting

_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 10.0
_RUNNER: Final = "apicurio-registry-app-3.0.9-runner.jar"


class Apicurio:
    """A registry that runs within `with`. `stop()` and `start()` keep its address, but not its data."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "apicurio.log"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For `*.converter.schema.registry.url`."""
        return f"http://{HOST}:{self.port}/apis/ccompat/v7"

    def client(self) -> SchemaRegistryClient:
        """A new client. The caller closes it."""
        return SchemaRegistryClient({"url": self.url})

    def start(self) -> None:
        """Returns once it answers."""
        command = [
            str(find_java()),
            "-Xmx256m",
            "-XX:TieredStopAtLevel=1",
            f"-Dquarkus.http.host={HOST}",
            f"-Dquarkus.http.port={self.port}",
            "-jar",
            str(_unpacked() / _RUNNER),
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        waiting(self._answers, _START_SECONDS, f"Apicurio; its log: {self.log}")

    def stop(self) -> None:
        """`kill -9`. Afterwards connections are refused."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(_STOP_SECONDS)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"Apicurio ended:\n{self.log.read_text()[-2000:]}"
        return answers(f"{self.url}/subjects")


def _unpacked() -> Path:
    """The archive, unpacked once into the download cache. Several processes may do so at the same time."""
    (archive,) = jars.fetch("apicurio")
    folder = archive.with_name(archive.name.removesuffix(".tar.gz"))
    if not folder.exists():
        own = folder.with_name(f"{folder.name}.{os.getpid()}")
        with tarfile.open(archive) as packed:
            packed.extractall(own, filter="data")
        try:
            own.rename(folder)
        except OSError:  # another process was faster
            if not folder.exists():
                raise
    return folder
