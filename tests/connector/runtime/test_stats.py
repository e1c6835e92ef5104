"""The report of a connector's counters: each is in its place, and is a copy."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import orjson

from deelog_connector.core import ConnectorCore, Counts
from deelog_connector.runtime.configured import settings_of
from deelog_connector.runtime.stats import Stats
from tests.connector.cache import Cache, config_of, run

_NAMES = """
    takeovers takeover_ms resets resets_aborted reset_rows reset_deletes snapshot_rows written pruned transactions
    refused fenced zombie_commits_refused corrections overflow truncations scans_in_vain unwritten stopped signals
    snapshots announcements_dropped filtered erroneous halted withheld
"""


def test_every_counter_stands_under_its_name_and_is_a_copy() -> None:
    config = config_of("h:1", "p")
    core: ConnectorCore = ConnectorCore("n1@1", settings_of(config, None), None)  # type: ignore[arg-type]
    counts = core.counts
    flat = [one.name for one in fields(Counts) if one.type == "int"]
    for number, name in enumerate(flat, start=1):
        setattr(counts, name, number)
    counts.takeover_ended(0.12345)
    counts.resets["start"] = 41
    counts.overflow["block"] = 42
    others: dict[str, Any] = {
        "zombie_commits_refused": 51,
        "signals": {"log": 52},
        "snapshots": ["s1"],
        "announcements_dropped": 53,
        "halted": "why",
        "filtered": 54,
        "erroneous": 55,
    }
    core.withheld = frozenset({4, 3})
    found = Stats.of(core, **others)
    assert orjson.dumps(found.withheld) == b"[3,4]"
    assert {one.name: getattr(found, one.name) for one in fields(Stats)} == {
        **{name: number for number, name in enumerate(flat, start=1)},
        "takeovers": 2,
        "takeover_ms": [123.5],
        "resets": {"start": 41},
        "overflow": {"block": 42},
        "unwritten": 0,
        "stopped": {},
        "withheld": [3, 4],
        **others,
    }
    counts.resets["start"] = counts.overflow["block"] = others["signals"]["log"] = 0
    counts.takeover_ms.clear()
    assert (found.resets, found.overflow, found.signals, found.takeover_ms) == (
        {"start": 41},
        {"block": 42},
        {"log": 52},
        [123.5],
    )


def test_the_names_are_those_of_deelog_stats() -> None:
    """Who reads `DEELOG.STATS` or a capture's `stats` knows them."""
    assert {one.name for one in fields(Stats)} == set(_NAMES.split())


def test_those_of_a_connector_that_has_not_started() -> None:
    async def work() -> None:
        cache = Cache(config_of("h:1", "p"), 1)
        assert cache.connector.stats == Stats()
        await cache.connector.stop(release=False)

    run(work(), 20)
