"""Other places to run the job: environments without deelog, a standalone cluster, a Connect server."""

from __future__ import annotations

import os
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import pyspark

from deelog_connector.devkafka.ports import HOST, free_port
from deelog_proof.harness.child import Child, until

HOME = Path(pyspark.__file__).parent
EXECUTORS_NEED = ("confluent-kafka", "numpy", "orjson", "pyarrow", "tenacity")
"""The packages that docs/diff-job.md names."""
DRIVER_NEEDS = (*EXECUTORS_NEED, "click", "javaproperties", "pandas", "python-dateutil", "pytz", "tzdata")
_SECONDS = 60.0


def python_with(folder: Path, packages: Sequence[str]) -> Path:
    """The interpreter of a new environment with only these distributions, linked from this one."""
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    for package in packages:
        found = distribution(package)
        for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (site / name).symlink_to(Path(str(found.locate_file(name))))
    return folder / "bin" / "python"


def submit(job: Path, *arguments: str, master: str, jars: str, pyfiles: Path) -> list[str]:
    """The spark-submit command with the zip, up to the job's own options."""
    own = ["--master", master, "--jars", jars, "--py-files", str(pyfiles), *arguments, str(job)]
    return [str(HOME / "bin" / "spark-submit"), *own]


def pythons(driver: Path, executor: Path) -> dict[str, str]:
    """The variables with which spark-submit uses these interpreters, and none of this environment's packages."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DEELOG_SPARK_JARS")}
    own = {"PYSPARK_DRIVER_PYTHON": str(driver), "PYSPARK_PYTHON": str(executor)}
    return {**kept, **own, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": HOST}


class Standalone:
    """A master and its workers, each in its own process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self.url = f"spark://{HOST}:{self.port}"
        self.master = self._child("master", "--port", str(self.port))
        self.workers: list[Child] = []

    def start(self, workers: int) -> None:
        """Starts them. Returns once all workers have registered."""
        self.master.start()
        until(lambda: "elected leader" in self._log(), _SECONDS, "a master")
        for number in range(workers):
            work = str(self._folder / f"work{number}")
            worker = self._child("worker", "--cores", "1", "--memory", "1g", "--work-dir", work, self.url)
            self.workers.append(worker)
            worker.start()
        until(lambda: self._log().count("Registering worker") == workers, _SECONDS, "the workers")

    def executors(self, worker: int) -> int:
        """How many executors the worker was told to run."""
        return self.workers[worker].log.read_text().count("Asked to launch executor")

    def close(self) -> None:
        """Stops all of them, and the processes that they started."""
        for child in (*self.workers, self.master):
            child.kill()

    def _log(self) -> str:
        self.master.must_run()
        return self.master.log.read_text()

    def _child(self, name: str, *arguments: str) -> Child:
        main = f"org.apache.spark.deploy.{name}.{name.title()}"
        command = [str(HOME / "bin" / "spark-class"), main, "--host", HOST, "--webui-port", "0", *arguments]
        env = {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": "256m"}
        return Child(name, command, self._folder / f"{name}{len(getattr(self, 'workers', ()))}.log", env)


@contextmanager
def standalone(folder: Path, workers: int) -> Iterator[Standalone]:
    """A cluster that runs during the block."""
    folder.mkdir()
    cluster = Standalone(folder)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.close()


@contextmanager
def connect_server(folder: Path, jars: str, **more: str) -> Iterator[str]:
    """The address of a Spark Connect server with these jars, which runs during the block. `more`: its properties, with
    `_` for `.`."""
    port = free_port()
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    conf = {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    options = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local[2]", "--jars", jars, *options]
    env = {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": HOST}
    server = Child("connect", [*command, "--class", main, "spark-internal"], folder / "connect.log", env)

    def started() -> bool:
        server.must_run()
        return "Spark Connect server started" in server.log.read_text()

    server.start()
    try:
        until(started, _SECONDS, "the Connect server")
        yield f"sc://{HOST}:{port}"
    except AssertionError as error:
        raise AssertionError(f"{error}\nThe log of the Connect server {server.tail()}") from error
    finally:
        server.kill()
