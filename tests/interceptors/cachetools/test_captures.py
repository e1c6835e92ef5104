"""Several caches of one connector: they come and go, and each has its topics."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import cachetools
import pytest

import deelog_interceptors.cachetools as deelog
from deelog_connector.devkafka.ports import free_port
from deelog_connector.runtime import Connector
from deelog_connector.runtime.shell import Shell
from deelog_interceptors.cachetools import runner
from deelog_schemas.config import ConfigError, Role, load
from tests.connector.rest.client import Api
from tests.interceptors.cachetools.reading import read
from tests.interceptors.cachetools.test_capture import BEATING, config, forked, our_threads, ready
from tests.support.kafka import Broker
from tests.support.memory import LiveMemory, Memory
from tests.support.waiting import waiting


def connector(kafka: Broker | Memory, prefix: str, **more: Any) -> dict[str, Any]:
    found = config(kafka, prefix, **more)
    del found["cache.name"]
    return found | {"name": "sessions"}


def cache() -> Any:
    return cachetools.LRUCache(50)


def test_caches_come_and_go_while_the_others_are_captured(live: LiveMemory, prefix: str) -> None:
    first, second, third = cache(), cache(), cache()
    with deelog.Captures(connector(live, prefix)) as captures:
        one = captures.capture("first", first)
        assert one is not None
        ready(one)
        first["a"] = "1"
        two = captures.capture("second", second)
        assert two is not None
        assert list(captures) == ["first", "second"]
        assert our_threads() == ["deelog-sessions"]
        first["b"] = "2"
        second["a"] = "of the second"
        captures.release("first")
        assert list(captures) == ["second"]
        first["c"] = "captured no more"
        again = captures.capture("first", first)
        assert again is captures["first"]
        captures.capture("third", third)
        first.pop("a")
        third["z"] = "26"
    assert our_threads() == []
    assert read(live, f"{prefix}.first").entries == {"b": "2", "c": "captured no more"}
    assert read(live, f"{prefix}.second").entries == {"a": "of the second"}
    assert read(live, f"{prefix}.third").entries == {"z": "26"}


def test_one_that_cannot_go_on_leaves_the_others(live: LiveMemory, prefix: str) -> None:
    """Another process takes one cache's node id. That cache fails; the second is captured to the end."""
    first, second, usurped = cache(), cache(), cache()
    with deelog.Captures(connector(live, prefix, **BEATING)) as captures:
        one = captures.capture("first", first)
        two = captures.capture("second", second)
        assert one is not None
        assert two is not None
        ready(one)
        ready(two)
        with deelog.capture(usurped, config(live, prefix) | {"cache.name": "first"}):
            for turn in range(2000):
                second[f"k{turn % 40}"] = str(turn)
                if one.failure is not None:
                    break
                threading.Event().wait(0.02)
            assert one.failure is not None
            assert two.failure is None
    assert read(live, f"{prefix}.second").entries == dict(second)


def restarting(captures: deelog.Captures, live: LiveMemory) -> None:
    """Kafka is away while the first cache is being restarted: the restart waits for it."""
    lifecycle = captures._host._lifecycle
    assert lifecycle is not None
    (connector,) = lifecycle.connectors.values()
    shell, real = connector._shell, connector.replace

    async def replace(shell: Shell) -> None:
        live.kafka.up = False
        await real(shell)

    connector.replace = replace  # type: ignore[method-assign]
    Api(captures._config["rest.port"]).do("POST", "/connectors/sessions/restart?includeTasks=true")
    waiting(lambda: connector._shell is not shell, 30, "the restart")


def test_a_cache_captured_later_has_the_configuration_of_now(live: LiveMemory, prefix: str) -> None:
    port = free_port()
    with deelog.Captures(connector(live, prefix, **{"rest.port": port})) as captures:
        captures.capture("first", cache()).wait_until_streaming(30)
        Api(port).do("PATCH", "/connectors/sessions/config", {"max.batch.size": "777"})
        captures.capture("second", cache())
        assert captures._host._lifecycle is not None
        limits = {name: one.config["max.batch.size"] for name, one in captures._host._lifecycle.connectors.items()}
        assert limits == {"first": 777, "second": 777}


def test_a_capture_while_a_restart_waits_for_kafka_returns_in_time(live: LiveMemory, prefix: str) -> None:
    with deelog.Captures(connector(live, prefix, **{"rest.port": free_port()})) as captures:
        captures.capture("first", cache()).wait_until_streaming(30)
        restarting(captures, live)
        begun, second = time.monotonic(), cache()
        one = captures.capture("second", second)
        assert time.monotonic() - begun < 3
        second["k"] = "v"
        with pytest.raises(TimeoutError, match=r"cache second does not stream after 0\.1 s"):
            one.wait_until_streaming(0.1)
        live.kafka.up = True
        one.wait_until_streaming(30)
        assert read(live, f"{prefix}.second").entries == {"k": "v"}


def test_an_asyncio_program_goes_on_while_captures_end(live: LiveMemory, prefix: str) -> None:
    held: dict[str, Any] = {"first": cache(), "second": cache()}
    turns = 0

    async def ticking() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    async def program() -> None:
        ticker = asyncio.create_task(ticking())
        async with deelog.Captures(connector(live, prefix)) as captures:
            captures.capture("first", held["first"])
            held["first"]["k"] = "v"
        async with deelog.capture(held["second"], config(live, f"{prefix}2")):
            held["second"]["k"] = "w"
        ticker.cancel()

    asyncio.run(program())
    assert turns > 20
    assert read(live, f"{prefix}.first").entries == {"k": "v"}
    assert read(live, f"{prefix}2.sessions").entries == {"k": "w"}


def test_the_api_says_that_a_capture_has_failed(live: LiveMemory, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not its connector: the capture gives up."""
    port = free_port()
    with deelog.Captures(connector(live, prefix, **{"rest.port": port})) as captures:
        one = captures.capture("first", cache())

        def gives_up() -> None:
            raise deelog.CaptureFailed("another process captures it")

        monkeypatch.setattr(one._runner, "_raise_failure", gives_up)
        waiting(lambda: one.failure, 30, "the failure")
        waiting(lambda: Api(port).state("sessions") == "FAILED", 30, "its state")
        assert Api(port).ask("GET", "/health").status == 503


def test_what_it_refuses(live: LiveMemory, prefix: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cache.name = 'sessions': must not be set for several caches"):
        deelog.Captures(config(live, prefix))
    file = tmp_path / "shop.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\ntopic.prefix=shop\n")
    with pytest.raises(ConfigError, match=r"node.id: is required"):
        deelog.Captures(file)
    captures = deelog.Captures(connector(live, prefix))
    with pytest.raises(KeyError):
        captures.release("sessions")
    with pytest.raises(ConfigError, match=r"cache.name"):
        captures.capture("a/b", cache())
    captures.capture("sessions", cache())
    with pytest.raises(deelog.CaptureFailed, match="a cache named sessions is captured already"):
        captures.capture("sessions", cache())
    captures.close()
    captures.close()
    with pytest.raises(deelog.CaptureFailed, match="this connector is closed"):
        captures.capture("sessions", cache())
    assert our_threads() == []
    file.write_text("bootstrap.servers=127.0.0.1:1\ntopic.prefix=shop\nnode.id=n1\n")
    assert load(file, Role.CONNECTOR)["cache.name"] is None


def test_a_forked_child_is_told_to_make_its_own_and_closes_at_once(live: LiveMemory, prefix: str) -> None:
    def child() -> None:
        with pytest.raises(deelog.CaptureFailed, match="made before this process was forked"):
            captures.capture("two", cache())
        captures.close()

    with deelog.Captures(connector(live, prefix)) as captures:
        captures.capture("one", cache())
        forked(child)


def test_all_captures_are_closed_within_one_timeout(
    live: LiveMemory, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "Connector", lambda *given, **named: Connector(*given, **named, port=live.port(0.5)))
    captures = deelog.Captures(connector(live, prefix))
    caches = {f"c{number}": cache() for number in range(4)}
    for name, one in caches.items():
        ready(captures.capture(name, one))
    live.kafka.up = False
    for one in caches.values():
        one["k"] = "v"
    begun = time.monotonic()
    with pytest.raises(deelog.CaptureFailed, match="could not be written"):
        captures.close(3)
    assert time.monotonic() - begun < 3 + 3
    waiting(lambda: not our_threads(), 30, "the end of what is under way")


def test_a_program_that_ends_without_close_has_written_everything(kafka: Broker, prefix: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import cachetools, sys, json\nimport deelog_interceptors.cachetools as deelog\n"
        "captures = deelog.Captures(json.loads(sys.argv[1]))\n"
        "for name in ('one', 'two'):\n"
        "    cache = cachetools.LRUCache(10)\n"
        "    captures.capture(name, cache)\n"
        "    cache['k'] = name\n"
    )
    command = [sys.executable, str(program), json.dumps(connector(kafka, prefix))]
    done = subprocess.run(command, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("one", "two"):
        assert read(kafka, f"{prefix}.{name}").entries == {"k": name}
