"""The conformance kit with a real Kafka: for the dictionary of docs/howto/interceptor.md, for cachetools, and for
interceptors that are wrong, which it must find.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cachetools
import pytest

import deelog_interceptors.cachetools as deelog
from deelog_proof.conformance import CHECKS, Check, Driver, NotConformant
from deelog_proof.conformance.checks import (
    a_reset_is_the_content_at_one_moment,
    a_stop_writes_what_is_left,
    changes_arrive_in_order,
    nothing_is_lost_while_kafka_is_away,
)
from deelog_schemas.keys import segment_of
from tests.support.kafka import Broker
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "howto" / "interceptor.md"
BIN = Path(sys.executable).parent
MODULES = ("captured_dict", "carts", "test_captured_dict")
WITH_KAFKA = [check for check in CHECKS if check is not nothing_is_lost_while_kafka_is_away]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the page."""
    folder = tmp_path_factory.mktemp("page")
    files = dict(re.findall(r"^`([a-z_.]+)`[^`]*\n\n```[a-z]+\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.DOTALL))
    assert list(files) == ["captured_dict.py", "carts.properties", "carts.py", "test_captured_dict.py"]
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def modules(page: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a module of the page."""
    monkeypatch.syspath_prepend(page)
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def captured(modules: Callable[[str], Any]) -> Any:
    """The class of the page that captures, to be broken: each test imports it anew."""
    return modules("captured_dict").CapturedEntries


@pytest.fixture
def driver(captured: Any, modules: Callable[[str], Any]) -> type[Driver]:
    """The page's driver."""
    driver: type[Driver] = modules("test_captured_dict").CapturedDictDriver
    return driver


def test_the_page_runs_and_prints_what_it_says(kafka: Broker, prefix: str, page: Path) -> None:
    text = PAGE.read_text("utf-8")
    mine = page / "carts.properties"
    fields = mine.read_text("utf-8").replace("localhost:9092", kafka.bootstrap).replace("=shop\n", f"={prefix}\n")
    mine.write_text(fields, encoding="utf-8")
    (commands,) = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.DOTALL)
    (printed,) = re.findall(r"^```text\n(.*?)^```", text, re.M | re.DOTALL)
    assert commands == "deelog kafka start\npython carts.py\n"  # Kafka is there already
    done = subprocess.run(
        [sys.executable, "carts.py"],
        cwd=page,
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


@pytest.mark.parametrize("check", WITH_KAFKA, ids=lambda check: check.__name__)
def test_the_dictionary_of_the_page(check: Check, kafka: Broker, driver: type[Driver]) -> None:
    check(driver, kafka)


class CachetoolsDriver(Driver):
    """An LRU cache that is large enough."""

    def start(self, fields: Mapping[str, str], entries: Mapping[str, str]) -> None:
        self.cache: Any = cachetools.LRUCache(10_000)
        self.cache.update(entries)
        self.lock = threading.Lock()
        self.capture = deelog.capture(self.cache, dict(fields), lock=self.lock)

    def write(self, key: str, value: str) -> None:
        with self.lock:
            self.cache[key] = value

    def delete(self, key: str) -> None:
        with self.lock:
            del self.cache[key]

    def clear(self) -> None:
        with self.lock:
            self.cache.clear()

    def content(self) -> Mapping[str, str]:
        with self.lock:
            return dict(self.cache)

    def stop(self) -> None:
        self.capture.close(timeout=120.0)


@pytest.mark.parametrize("check", WITH_KAFKA, ids=lambda check: check.__name__)
def test_cachetools(check: Check, kafka: Broker) -> None:
    check(CachetoolsDriver, kafka)


@pytest.mark.slow
def test_cachetools_while_kafka_is_away(own_kafka: Broker) -> None:
    nothing_is_lost_while_kafka_is_away(CachetoolsDriver, own_kafka)


@pytest.mark.slow
@pytest.mark.kafka
def test_the_dictionary_while_kafka_is_away_as_the_page_runs_it(page: Path) -> None:
    """With the page's own broker; the other checks run above."""
    command = [sys.executable, "-m", "pytest", "test_captured_dict.py", "-k", "kafka_is_away", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=page, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


# -- interceptors that are wrong ---------------------------------------------------------------------------------------


def test_one_that_forgets_deletes_is_found(kafka: Broker, captured: Any, driver: type[Driver]) -> None:
    right = captured.capture

    def capture(self: Any, segment: int, reason: str, *rest: Any) -> None:
        if reason != "remove":
            right(self, segment, reason, *rest)

    captured.capture = capture
    with pytest.raises(NotConformant, match=r"the next write is Write\(key='key-\d+', value=None\)"):
        changes_arrive_in_order(driver, kafka)


def test_one_that_appends_before_it_changes_is_found(kafka: Broker, captured: Any, driver: type[Driver]) -> None:
    late: list[tuple[bytes, bytes]] = []

    async def change(self: Any, key: bytes, value: bytes) -> None:
        self.capture(segment_of(key, len(self.segments)), "put", key, value, key in self.of(key))
        while late:  # the change before this one is made now: whenever a reset reads, one is missing
            key_before, value_before = late.pop()
            self.of(key_before)[key_before] = value_before
        late.append((key, value))

    captured.change = change
    with pytest.raises(NotConformant, match=r"cannot come after \d+ of \d+ writes"):
        a_reset_is_the_content_at_one_moment(driver, kafka)


def test_one_that_says_that_every_write_creates_is_found(kafka: Broker, captured: Any, driver: type[Driver]) -> None:
    right = captured.capture

    def capture(self: Any, segment: int, reason: str, key: bytes, value: bytes | None, existed: bool) -> None:
        right(self, segment, reason, key, value, existed and value is None)

    captured.capture = capture
    with pytest.raises(NotConformant, match=r"Change\(op='c'.* the next write is"):
        changes_arrive_in_order(driver, kafka)


def test_one_that_does_not_write_what_is_left_is_found(kafka: Broker, captured: Any, driver: type[Driver]) -> None:
    right = captured.capture
    left: list[tuple[Any, ...]] = []

    def capture(self: Any, *note: Any) -> None:
        left.append(note)
        if len(left) > 1:  # the next write takes it along: only a stop can lose one
            right(self, *left.pop(0))

    captured.capture = capture
    with pytest.raises(NotConformant, match="the topic ends after"):
        a_stop_writes_what_is_left(driver, kafka)
