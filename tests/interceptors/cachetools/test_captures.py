"""Several caches of one connector on a real Kafka: they come and go, and each has its topics."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import cachetools
import pytest

import deelog_interceptors.cachetools as deelog
from deelog_schemas.config import ConfigError, Role, load, parse
from tests.interceptors.cachetools.reading import read
from tests.interceptors.cachetools.test_capture import config, our_threads, ready
from tests.support.kafka import Broker

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "topic.prefix": "p", "cache.name": "sessions", "node.id": "n1"}


def connector(kafka: Broker, prefix: str, **more: Any) -> dict[str, Any]:
    found = config(kafka, prefix, **more)
    del found["cache.name"]
    return found | {"name": "sessions"}


def cache() -> Any:
    return cachetools.LRUCache(50)


def test_caches_come_and_go_while_the_others_are_captured(kafka: Broker, prefix: str) -> None:
    first, second, third = cache(), cache(), cache()
    with deelog.Captures(connector(kafka, prefix)) as captures:
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
    assert read(kafka.bootstrap, f"{prefix}.first").entries == {"b": "2", "c": "captured no more"}
    assert read(kafka.bootstrap, f"{prefix}.second").entries == {"a": "of the second"}
    assert read(kafka.bootstrap, f"{prefix}.third").entries == {"z": "26"}


def test_the_lists_say_which_are_captured(kafka: Broker, prefix: str) -> None:
    left, taken = cache(), cache()
    with deelog.Captures(connector(kafka, prefix, cache_include_list="user-.*,prices")) as captures:
        assert captures.capture("sessions", left) is None
        assert captures.capture("user-names", taken) is not None
        left["a"] = taken["a"] = "1"
    assert read(kafka.bootstrap, f"{prefix}.user-names").entries == {"a": "1"}
    assert type(left) is type(taken) is cachetools.LRUCache


def test_one_that_cannot_go_on_leaves_the_others(kafka: Broker, prefix: str) -> None:
    """Another process takes one cache's node id. That cache fails; the second is captured to the end."""
    first, second, usurped = cache(), cache(), cache()
    with deelog.Captures(connector(kafka, prefix)) as captures:
        one = captures.capture("first", first)
        two = captures.capture("second", second)
        assert one is not None
        assert two is not None
        ready(one)
        ready(two)
        with deelog.capture(usurped, config(kafka, prefix) | {"cache.name": "first"}):
            for turn in range(2000):
                second[f"k{turn % 40}"] = str(turn)
                if one.failure is not None:
                    break
                threading.Event().wait(0.02)
            assert one.failure is not None
            assert two.failure is None
    assert read(kafka.bootstrap, f"{prefix}.second").entries == dict(second)


def naming(prefix: str, delimiter: str, name: str) -> str:
    """A user's strategy."""
    kind, _, _ = name.partition("-")
    return f"{prefix}{delimiter}all{delimiter}{kind}"


def test_a_strategy_names_the_topics_and_two_caches_never_share_one(kafka: Broker, prefix: str) -> None:
    strategy = f"{__name__}.naming"
    users = cache()
    with deelog.Captures(connector(kafka, prefix, topic_naming_strategy=strategy)) as captures:
        captures.capture("users-1", users)
        users["a"] = "1"
        with pytest.raises(deelog.CaptureFailed, match=r"users-2 the topic .* that of cache users-1"):
            captures.capture("users-2", cache())
    assert read(kafka.bootstrap, f"{prefix}.all.users").entries == {"a": "1"}


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [
        ("no_such_module.naming", "names nothing that can be imported"),
        (f"{__name__}.no_such_function", "names nothing that can be imported"),
        (f"{__name__}.SEGMENTS", "failed for cache 'sessions': TypeError"),
        (f"{__name__}.nothing", "must give the name of a topic for cache 'sessions', and gave None"),
        (f"{__name__}.odd", r"gives the topic 'a topic', which must be letters"),
    ],
)
def test_strategies_that_name_no_topic(strategy: str, problem: str) -> None:
    given = {**NOWHERE, "topic.naming.strategy": strategy}
    with pytest.raises(ConfigError, match=problem) as raised:
        parse(given).topics  # noqa: B018 - the access is what fails
    assert raised.value.errors[0].field == "topic.naming.strategy"


SEGMENTS = 16


def nothing(prefix: str, delimiter: str, name: str) -> None:
    """A strategy that returns None."""


def odd(prefix: str, delimiter: str, name: str) -> str:
    """A strategy that returns a name that Kafka refuses."""
    return "a topic"


@pytest.mark.parametrize("path", ["naming", "1a.b", "a.b()", "a..b", "os.system;x"])
def test_a_strategy_is_a_dotted_path(path: str) -> None:
    with pytest.raises(ConfigError, match=r"topic.naming.strategy"):
        parse({**NOWHERE, "topic.naming.strategy": path})


def test_what_it_refuses(kafka: Broker, prefix: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cache.name = 'sessions': must not be set for several caches"):
        deelog.Captures(config(kafka, prefix))
    file = tmp_path / "shop.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\ntopic.prefix=shop\n")
    with pytest.raises(ConfigError, match=r"node.id: is required"):
        deelog.Captures(file)
    captures = deelog.Captures(connector(kafka, prefix))
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
        assert read(kafka.bootstrap, f"{prefix}.{name}").entries == {"k": name}
