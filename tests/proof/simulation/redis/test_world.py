"""Servers of Redis and connectors, as scripts and seeds have them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from deelog_proof.simulation.campaign import Plan, run
from deelog_proof.simulation.cli import simulate
from deelog_proof.simulation.redis.generate import FAULTS, MOMENTS
from deelog_proof.simulation.redis.vacuity import GUARD
from deelog_proof.simulation.redis.verbs import TAGS, VERBS
from deelog_proof.simulation.redis.world import RedisWorld
from deelog_proof.simulation.run import Verdict
from deelog_proof.simulation.script import parse
from deelog_schemas.keys import segment_of, slot_of

PLAN = Plan(1, 12, 3000, tuple(FAULTS), "redis")


def played(*lines: str) -> tuple[RedisWorld, Verdict]:
    """What comes of a script."""
    world = RedisWorld(parse("\n".join(("cache redis", *lines))))
    verdict = world.run()
    assert verdict.violation is None, verdict.violation
    return world, verdict


def topic(world: RedisWorld) -> dict[bytes, bytes]:
    """What the topic has in the end."""
    readers = world.checker.readers.values()
    return {key: entry.value for reader in readers for key, entry in reader.entries.items()}


def string(value: str) -> bytes:
    return b'{"type":"string","value":"%b"}' % value.encode()


@pytest.mark.parametrize("seed", range(PLAN.first, PLAN.last + 1))
def test_seeds_hold(seed: int) -> None:
    outcome = run(PLAN.script(seed))
    assert not outcome.part, outcome.text


def test_a_seed_runs_the_same_each_time_and_another_one_does_not() -> None:
    first, again, other = (run(PLAN.script(seed)).digest for seed in (3, 3, 4))
    assert first == again != other


@pytest.mark.slow
def test_a_campaign_sees_what_it_is_there_to_see() -> None:
    outcome = CliRunner().invoke(simulate, ["--cache", "redis", "--seeds", "1..100", "--steps", "1000", "--jobs", "2"])
    assert outcome.exit_code == 0, outcome.output
    assert "100  of 100 seeds" in outcome.output


def test_a_campaign_is_asked_for_each_of_its_faults() -> None:
    asked = GUARD.missing({}, tuple(FAULTS), 1_000_000, 3000)
    faults = {name.removeprefix("fault ") for name in asked if name.startswith("fault ")}
    assert faults == {name for name, verb in VERBS.items() if verb.fault and name != "recreate"}
    assert "corrections" in asked


def test_commands_are_told_one_by_one_and_a_transaction_is_whole() -> None:
    world, verdict = played(
        "0.1 write SET a 1",
        "0.1 write SET a 2 / RPUSH l x / SET b 3",
        "0.2 write SET a 9 NX",
        "0.3 write_to r2 SET a 7",
    )
    expected = {b"a": string("2"), b"b": string("3"), b"l": b'{"type":"list","value":["x"]}'}
    assert topic(world) == expected
    assert (verdict.counts["did write"], verdict.counts["did write_to"]) == (2, 0), "two of them are refused"
    assert verdict.counts["record CHANGE"] == 4
    assert verdict.counts["reset initial"] == 4


def test_a_failover_that_loses_writes_is_taken_back() -> None:
    world, verdict = played(
        "set acks_all 0", "0.1 write SET a 1", "0.2 cut r1 r2", "0.3 write SET a 2 / SET b 1", "0.31 failover r2"
    )
    assert topic(world) == {b"a": string("1")}
    assert verdict.counts["lost by servers"] == 1
    assert verdict.counts["corrections"] == 2


def test_with_all_replicas_nothing_is_taken_back_that_they_have() -> None:
    world, verdict = played("0.1 write SET a 1", "0.2 write SET b 1", "0.3 failover r2", "0.4 write SET a 2")
    assert topic(world) == {b"a": string("2"), b"b": string("1")}
    assert (verdict.counts["corrections"], verdict.counts["lost by servers"]) == (0, 0)
    assert world.primaries == ["r2"]
    assert world.names == {"primary": "r2", "writer": "c2", "replica": "r1", "reader": "c1"}


def test_a_primary_that_lives_on_is_written_to_until_it_follows() -> None:
    world, verdict = played("0.1 write SET a 1", "0.3 split r2", "0.31 write_to r1 SET a 2", "0.9 follow r1")
    assert topic(world) == {b"a": string("1")}
    assert (verdict.counts["did write_to"], verdict.counts["lost by servers"]) == (1, 1)


@pytest.mark.parametrize(
    ("data", "left"),
    [
        ("none", {}),
        ("same", {b"a": string("2")}),
        ("saved", {b"a": string("1")}),
        ("append-only", {b"a": string("2")}),
    ],
)
def test_a_primary_comes_back_with_what_it_had(data: str, left: dict[bytes, bytes]) -> None:
    world, verdict = played(
        "0.1 write SET a 1", "0.2 save r1", "0.3 write SET a 2", "0.5 crash r1", f"0.6 restart r1 {data}"
    )
    assert topic(world) == left
    assert verdict.counts["lost by servers"] == {"none": 2, "saved": 1}.get(data, 0)


def test_a_connector_that_is_killed_goes_on_where_it_was() -> None:
    _, verdict = played("0.1 write SET a 1", "0.3 crash c1", "0.4 write SET a 2", "0.5 restart c1")
    assert {name: n for name, n in verdict.counts.items() if name.startswith("reset ")} == {"reset initial": 4}
    assert verdict.counts["record CHANGE"] == 2


def test_behind_the_end_of_every_backlog_all_is_sent_anew() -> None:
    lines = (
        "0.1 write SET a 1",
        "0.3 crash c1",
        "0.4 write SET a 2",
        "0.5 trim r1 0",
        "0.5 trim r2 0",
        "0.6 restart c1",
    )
    world, verdict = played(*lines)
    assert topic(world) == {b"a": string("2")}
    assert verdict.counts["reset stream_lost"] == 4


def test_a_connector_leaves_and_a_twin_takes_its_place() -> None:
    _, verdict = played("0.1 leave c1", "0.5 restart c1", "0.7 twin c1", "0.8 write SET a 1")
    assert [verdict.counts[f"did {name}"] for name in ("leave", "restart", "twin")] == [1, 1, 1]


STORY = (
    *(f"{at / 100:.2f} write MSET k{at % 9} {at} m{at % 9} {at}" for at in range(3, 100, 3)),
    "0.10 leave writer",
    "0.20 write RPUSH l x / HSET h f v",
    "0.25 write FLUSHDB",
    "0.40 restart c1",
    "0.49 cut primary replica",
    "0.53 failover replica",
    "0.56 heal r1 r2",
    "0.56 heal r1 r3",
    "0.65 kafka off",
    "0.70 kafka on",
    "0.75 split replica",
    *(f"0.85 follow {server}" for server in ("r1", "r2", "r3")),
    "0.90 write SWAPDB 0 1 / SWAPDB 0 1",
)
"""What connectors do: takeovers, resets, corrections, images, a release."""
ELSEWHERE = ("steppeddown", "sends:cluster")
"""Moments that this story has not."""


@pytest.mark.parametrize("moment", [name for name in dict.fromkeys(MOMENTS) if name not in ELSEWHERE])
def test_nothing_is_lost_when_a_connector_ends_or_its_server_fails_over_at_a_moment(moment: str) -> None:
    lines = [
        "set servers 3",
        "set acks_all 0",
        f"set sentinels {3 * (moment == 'sends:sentinel')}",
        *STORY,
        f"0.00 at * {moment} crash it",
        "0.25 restart c1",
        f"0.45 at * {moment} failover replica",
        f"0.72 at * {moment} crash it",
    ]
    _, verdict = played(*sorted(lines, key=lambda line: "" if line[0] == "s" else line))
    assert verdict.counts["did crash"] + verdict.counts["did failover"] > 1, "the moment has come"


CLUSTER = ("set servers 4", "set shards 2")


def slots(world: RedisWorld, *servers: str) -> list[set[str]]:
    """The tags of the slots that these have."""
    found = [world.nodes[server].redis.cluster.me.slots for server in servers]  # type: ignore[attr-defined]
    return [{tag for tag in TAGS if slot_of(tag.encode()) in each} for each in found]


def test_the_servers_of_a_cluster_have_its_slots() -> None:
    lines = ("0.1 write SET {a}1 x", "0.1 write SET {b}1 y", "0.2 write FLUSHDB", "0.3 write MSET {a}1 z {b}1 z")
    world, verdict = played(*CLUSTER, *lines)
    assert slots(world, "r1", "r2", "r3", "r4") == [{"a", "c", "e"}, {"b", "d", "f"}, set(), set()]
    assert verdict.counts["did write"] == 3, "no command is of two slots"
    names = {"primary": "r1", "writer": "c1", "replica": "r3", "reader": "c3"}
    assert world.names == names | {"primary2": "r2", "writer2": "c2", "replica2": "r4", "reader2": "c4"}


def test_a_slot_moves_key_by_key_and_no_key_of_it_is_deleted() -> None:
    world, verdict = played(
        *CLUSTER,
        "0.1 write SET {a}1 x",
        "0.1 write SET {a}2 x",
        "0.2 move a r1",
        "0.2 move a r2",
        "0.205 write SET {a}3 x",
        "0.21 write SET {a}1 y",
    )
    assert verdict.counts["moves ended"] == 1
    assert topic(world) == {b"{a}1": string("y"), b"{a}2": string("x"), b"{a}3": string("x")}
    assert not any("DELETE" in line for line in verdict.trace)
    assert verdict.counts["record TOMBSTONE"] == 0


def test_a_move_is_given_up_and_what_has_gone_comes_back() -> None:
    lines = [f"0.1 write SET {{a}}{number} x" for number in range(9)]
    world, verdict = played(*CLUSTER, *lines, "0.2 move a r2", "0.22 abort a", "0.3 write SET {a}1 y")
    assert (verdict.counts["did abort"], verdict.counts["moves ended"]) == (1, 0)
    assert len(topic(world)) == 9


def test_a_shard_keeps_its_last_slot() -> None:
    world, verdict = played(*CLUSTER, *(f"0.{number} move {tag} r1" for number, tag in enumerate(TAGS, 1)))
    assert verdict.counts["moves ended"] == 2
    assert [len(each) for each in slots(world, "r1", "r2")] == [5, 1]


def test_a_shard_fails_over_while_its_slot_moves() -> None:
    lines = [f"0.1 write SET {{a}}{number} x" for number in range(9)]
    world, verdict = played(
        *CLUSTER, *lines, "0.2 move a r2", "0.205 split r3", "0.22 write_to r1 SET {f}9 lost", "0.3 write SET {a}1 y"
    )
    assert world.primaries == ["r3", "r2"]
    assert verdict.counts["moves ended"] == 1
    assert topic(world)[b"{a}1"] == string("y")


def test_who_is_not_named_by_sentinels_is_not_written() -> None:
    world, verdict = played(
        "set sentinels 3",
        "0.1 write SET a 1",
        "0.3 split r2",
        "0.6 write_to r1 SET a lost",
        "0.6 write SET a 2",
        "0.7 crash s1",
        "0.8 crash s2",
        "0.9 write SET a 3",
        "1.0 restart s1",
    )
    assert topic(world) == {b"a": string("3")}
    assert verdict.counts["lost by servers"] == 1
    assert verdict.counts["corrections"] == 0, "what the former primary took was never written"
    assert [watcher.redis.run_id for watcher in world.watchers()] == 3 * [world.leader(0).redis.run_id]


def test_sentinels_may_choose_whom_they_want() -> None:
    """Also a server that has never had the stream of the primary."""
    lines = ("0.1 write SET a 1", "0.2 cut r1 r2", "0.3 crash r2", "0.4 restart r2", "0.5 failover r2")
    assert played("set sentinels 3", *lines)[1].counts["did failover"] == 1
    assert played(*lines)[1].counts["did failover"] == 0


def test_what_cannot_happen_is_passed_over() -> None:
    lines = ("failover primary", "split r1", "follow r1", "restart r1", "twin c3", "save r2", "trim r2 5")
    _, verdict = played("set servers 3", "0.1 crash r2", *(f"0.2 {line}" for line in lines), "0.3 failover r2")
    # c3 is there, and gets a twin.
    assert {name for name in verdict.counts if name.startswith("did ")} == {"did crash", "did twin"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0.1 write GET a", "GET is none of APPEND, "),
        ("0.1 failover c1", "c1 is no server: they are primary, replica, r1, r2"),
        ("0.1 leave r1", "r1 is no connector: they are writer, reader, c1, c2"),
        ("0.1 restart r1 some", "some is none of none, same, saved, append-only"),
        ("0.1 away topology 0 leader", "topology is none of changes, positions"),
        ("0.1 at c1 restarted crash it", "restarted is none of open, commit, "),
        ("0.1 at c1 scan crash", "crash takes 1 to 1 arguments"),
        ("0.1 trim r1 much", "much is no whole number"),
        ("0.1 move g r1", "g is none of a, b, c, d, e, f"),
        ("0.1 failover primary2", "primary2 is no server: they are primary, replica, r1, r2"),
        ("0.1 put s0k1 v1", "put is none of write, "),
        ("set nodes 3", "nodes is none of servers, "),
        ("cache memcached", "a cache is one of grid, redis"),
    ],
)
def test_a_wrong_line_of_a_script_is_named(line: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "script.txt"
    file.write_text(f"cache redis\n{line}\n")
    result = CliRunner().invoke(simulate, ["--script", str(file)])
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_script_is_text_and_back() -> None:
    script = PLAN.script(5)
    assert str(script).startswith("# seed 5\ncache redis\n")
    assert parse(str(script)) == script


def test_keys_are_spread() -> None:
    assert len({segment_of(b"k%d" % number, 4) for number in range(8)}) == 4, "as scenarios take it for granted"
