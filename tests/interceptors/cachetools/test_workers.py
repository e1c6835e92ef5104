"""The page on several workers, to the letter: its program, its hook and its commands, with gunicorn and uvicorn."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deelog_connector.devkafka.ports import free_port
from tests.interceptors.cachetools.reading import read
from tests.support.kafka import Broker
from tests.support.paths import ROOT
from tests.support.waiting import waiting

SECONDS = 60.0
WORKERS = 4
_PAGE = (ROOT / "docs/howto/workers.md").read_text()


def block(having: str) -> str:
    """The one block of the page that has this text."""
    (found,) = [text for text in re.findall(r"```\w+\n(.*?)```", _PAGE, re.DOTALL) if having in text]
    return str(found)


@contextmanager
def serving(kafka: Broker, prefix: str, folder: Path, command: str) -> Iterator[tuple[Callable[[str], Any], int]]:
    """The page's server, run by the command that begins so: a call of a path, and its process."""
    (folder / "tmp").mkdir()
    (folder / "shop.py").write_text(block("def number()"))
    (folder / "gunicorn.conf.py").write_text(block("def post_worker_init"))
    files = block("for n in").replace("localhost:9092", kafka.bootstrap).replace("=shop\n", f"={prefix}\n")
    ports = free_port()
    subprocess.run(["bash", "-c", files.replace("9400", str(ports))], cwd=folder, check=True)
    for file in folder.glob("*.properties"):  # ports that are free, not those of the page
        file.write_text(re.sub(r"metrics.port=\d+", f"metrics.port={free_port()}", file.read_text()))
        file.write_text(file.read_text() + "topic.creation.default.replication.factor=1\n")
    port = free_port()
    given = shlex.split(block(command).replace("8000", str(port)))
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "PYTHONPATH": f"{folder}:{ROOT}"}
    errors = (folder / "errors").open("w")
    with (
        errors,
        subprocess.Popen(
            [str(Path(sys.executable).parent / given[0]), *given[1:]],
            cwd=folder,
            env=environment,
            stdout=errors,
            stderr=errors,
        ) as server,
    ):

        def call(path: str) -> Any:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                error.close()  # it holds the connection
                return None
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                return None  # not yet, or its worker was killed

        try:
            waiting(lambda: call("first"), SECONDS, "the server")
            yield call, server.pid
            server.send_signal(signal.SIGTERM)
            assert server.wait(SECONDS) in (0, -signal.SIGTERM), (folder / "errors").read_text()
        finally:
            server.kill()


@pytest.mark.kafka
@pytest.mark.parametrize("command", ["gunicorn shop", "uvicorn shop"])
def test_each_worker_is_a_cache_of_its_own(kafka: Broker, prefix: str, tmp_path: Path, command: str) -> None:
    told: dict[int, dict[str, Any]] = {}

    def all_answer() -> bool:
        for number in range(100):
            if (answer := call(f"user{number}")) is not None:
                told[answer["worker"]] = answer
        return told.keys() == set(range(WORKERS))

    with serving(kafka, prefix, tmp_path, command) as (call, _):
        waiting(all_answer, SECONDS, "an answer of each worker")
        killed = told.pop(2)["pid"]
        os.kill(killed, signal.SIGKILL)
        waiting(all_answer, SECONDS, "an answer of the worker in its place")
        assert told[2]["pid"] != killed
    assert len({answer["pid"] for answer in told.values()}) == WORKERS
    for number, answer in told.items():
        topic = read(kafka, f"{prefix}.sessions-{number}")
        assert topic.entries.items() >= answer["sessions"].items(), number
        assert set(topic.entries.values()) == {str(answer["pid"])}, number
        assert topic.repeats == 0
    assert "Traceback" not in (tmp_path / "errors").read_text()
