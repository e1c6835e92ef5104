"""A real Prometheus for one test, which scrapes its targets every second.

Its programs are those on PATH. If there are none but apt is available, Debian's package is unpacked into the cache
directory; nothing is installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from deelog_connector.devkafka.ports import HOST, free_port
from deelog_schemas.java import cache_dir
from tests.support.http import answers
from tests.support.waiting import waiting

_SECONDS = 60.0


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`."""
    folder = cache_dir() / "prometheus"
    found = shutil.which(name) or shutil.which(name, path=str(folder / "usr" / "bin"))
    if found is None and shutil.which("apt-get") and shutil.which("dpkg-deb"):
        _unpack(folder)
        found = shutil.which(name, path=str(folder / "usr" / "bin"))
    if found is None:
        pytest.fail(f"{name} is missing: install it (Debian, Ubuntu: apt install prometheus)")
    return found


def _unpack(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        download = ["apt-get", "download", "-qq", "prometheus"]
        if subprocess.run(download, cwd=place, capture_output=True, check=False).returncode != 0:
            subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=True)
            subprocess.run(download, cwd=place, capture_output=True, check=True)
        (package,) = Path(place).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, Path(place) / "all"], check=True)
        with suppress(FileExistsError, OSError):  # another test was faster
            (Path(place) / "all").rename(folder)


class Prometheus:
    """One server. `targets`: job to addresses."""

    def __init__(self, folder: Path, targets: Mapping[str, Sequence[str]], rules: Sequence[Path] = ()) -> None:
        self._folder, self._port = folder, free_port()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
                for job, addresses in targets.items()
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML, too
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it is ready."""
        options = {
            "config.file": self._folder / "prometheus.yml",
            "storage.tsdb.path": self._folder / "data",
            "web.listen-address": f"{HOST}:{self._port}",
        }
        command = [program("prometheus"), *(f"--{name}={value}" for name, value in options.items())]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        waiting(self._is_ready, _SECONDS, f"Prometheus; its log: {self.log}")

    @property
    def log(self) -> Path:
        return self._folder / "prometheus.log"

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        return answers(f"http://{HOST}:{self._port}/-/ready")

    def stop(self) -> None:
        """Stops it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_SECONDS)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The current samples of an expression. An error in the expression fails the test with Prometheus' message."""
        found = self._get("query", query=expression)
        assert found["resultType"] in ("vector", "matrix"), found
        samples: list[dict[str, Any]] = found["result"]
        return samples

    def value(self, expression: str) -> float | None:
        """The value of an expression that has one sample or none."""
        samples = self.query(expression)
        assert len(samples) <= 1, samples
        return float(samples[0]["value"][1]) if samples else None

    def alerts(self) -> dict[str, str]:
        """The state of each alert rule: `inactive`, `pending`, `firing`."""
        groups = self._get("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert all(rule["health"] != "err" for rule in rules), rules
        return {rule["name"]: rule["state"] for rule in rules if rule["type"] == "alerting"}

    def _get(self, what: str, **parameters: str) -> dict[str, Any]:
        url = f"http://{HOST}:{self._port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                found: dict[str, Any] = json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        return found


@contextmanager
def running_prometheus(
    folder: Path, targets: Mapping[str, Sequence[str]], rules: Sequence[Path] = ()
) -> Iterator[Prometheus]:
    """A server that runs during the block."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Prometheus(folder, targets, rules)
    server.start()
    try:
        yield server
    finally:
        server.stop()
