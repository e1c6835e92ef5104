"""The report of a connector's counters: each is in its place, and is a copy."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from deelog_connector.core import ConnectorCore
from deelog_connector.runtime.configured import settings_of
from deelog_connector.runtime.stats import Stats
from tests.connector.cache import Cache, config_of, run


def test_every_counter_stands_under_its_name_and_is_a_copy() -> None:
    config = config_of("h:1", "p")
    core: ConnectorCore = ConnectorCore("n1@1", settings_of(config, None), None)  # type: ignore[arg-type]
    counts = core.counts
    numbers = ("takeovers", "reset_rows", "reset_deletes", "written", "pruned", "transactions", "fenced", "corrections")
    for number, name in enumerate((*numbers, "snapshot_rows"), start=1):
        setattr(counts, name, number)
    counts.takeover_seconds.append(0.12345)
    counts.resets["start"] = 21
    counts.overflows["block"] = 22
    others: dict[str, Any] = {
        "zombie_commits_refused": 31,
        "signals": {"log": 32},
        "snapshots": ["s1"],
        "announcements_dropped": 33,
        "halted": "why",
    }
    found = Stats.of(core, piped={"filtered": 34, "erroneous": 35}, **others)
    expected = {
        **{name: number for number, name in enumerate((*numbers, "snapshot_rows"), start=1)},
        "takeover_ms": [123.5],
        "resets": {"start": 21},
        "overflow": {"block": 22},
        "filtered": 34,
        "erroneous": 35,
        "unwritten": 0,
        "stopped": {},
        **others,
    }
    assert {one.name: getattr(found, one.name) for one in fields(Stats)} == expected
    counts.resets["start"] = counts.overflows["block"] = others["signals"]["log"] = 0
    counts.takeover_seconds.clear()
    assert (found.resets, found.overflow, found.signals, found.takeover_ms) == (
        {"start": 21},
        {"block": 22},
        {"log": 32},
        [123.5],
    )
    assert Stats.of(core, piped={}, **others).filtered == 0


def test_those_of_a_connector_that_has_not_started() -> None:
    async def work() -> None:
        cache = Cache(config_of("h:1", "p"), 1)
        assert cache.connector.stats == Stats()
        await cache.connector.stop(release=False)

    run(work(), 20)
