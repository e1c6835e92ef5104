"""The demo from its start to its report: the load and its faults, what is compared, and how it ends."""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from deelog_proof.audit.topics import ChangeTopic, DiffTopic, Ownership
from deelog_proof.audit.verify import Verdict
from deelog_proof.demo import run as module
from deelog_proof.demo import settings as settings_module
from deelog_proof.demo.faults import Fault, Happened
from deelog_proof.demo.report import problems
from deelog_proof.demo.run import _diff_note, _examples, _percentiles, _play_faults, _run, _verify, run, stay
from deelog_proof.demo.settings import GAP_SECONDS, Settings
from deelog_proof.harness.environment import RunError
from deelog_proof.load.history import Audit, Captured, History, Sent, content_of
from deelog_proof.load.traces import Write
from deelog_schemas.errors import DeelogError
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import Entry
from tests.proof.harness.doubles import Parts

TRACE = "1\t1\t1\tc\ta\t\tabc\t3\n2\t1\t1\tc\tb\t\txyz\t3\n"


class FakePlayer:
    """Plays nothing: counts what it is given, and waits to be stopped where `endless`."""

    endless = False
    failure: BaseException | None = None

    def __init__(self, nodes: Iterable[tuple[str, int]] = ()) -> None:
        self.nodes, self.replicas = list(nodes), 0
        self.limit: int | None = None
        self.rate = 0.0
        self.operations = self.acked = self.refused = self.attempts = 0
        self.longest_ms, self.last_error = 1234.0, ""
        self.stopped = threading.Event()
        self.asked: list[tuple[int | None, float]] = []
        self.history: list[History] = []

    def run(self, writes: Iterable[Write]) -> None:
        if self.failure is not None:
            raise self.failure
        self.operations = self.acked = sum(1 for _ in writes)
        if self.endless:
            self.stopped.wait(60)

    def stop(self) -> None:
        self.stopped.set()

    def histories(self) -> list[History]:
        return self.history


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> FakePlayer:
    """The only one that is made."""
    player = FakePlayer()

    def make(nodes: Iterable[tuple[str, int]], replicas: int) -> FakePlayer:
        player.nodes, player.replicas = list(nodes), replicas
        return player

    monkeypatch.setattr(module, "Player", make)
    return player


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    parts = Parts(tmp_path)
    show: Any = parts.show
    show.advance = lambda done, note="": None
    show.console = Console(file=io.StringIO(), width=200)
    return parts


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was slept; a clock goes on by it alone."""
    slept: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept)))
    return slept


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch, player: FakePlayer, slept: list[float]) -> list[Fault]:
    """Two faults, of 8 and of 18 seconds: with gaps and lead the load shall take 3 + 10 + 20."""

    def strike(name: str) -> Fault:
        def happen(environment: Any, draw: Any) -> Happened:
            player.asked.append((player.limit, player.rate))
            slept.append(2.5)
            return Happened(name, 7, notes={"drawn": draw.random()})

        return Fault(name, {"a": 8.0, "b": 18.0}[name], happen)

    faults = [strike("a"), strike("b")]
    for place in (module, settings_module):
        monkeypatch.setattr(place, "planned", lambda settings: faults if settings.faults == "all" else [])
    return faults


# -- load and faults ----------------------------------------------------------------------------------------------


def play(
    parts: Parts, player: FakePlayer, settings: Settings, goes_on: Callable[[], bool] = lambda: True
) -> list[Happened]:
    given: Any = player
    return _play_faults(settings, 3300, parts.environment, given, goes_on)


def test_each_fault_has_its_share_of_the_load(
    parts: Parts, player: FakePlayer, faults: list[Fault], slept: list[float]
) -> None:
    player.operations = 100
    happened = play(parts, player, Settings())
    assert [fault.fault for fault in happened] == ["a", "b"]
    assert player.asked == [(1000, 90.0), (3000, 145.0)]  # the writes that are left, spread over 10 s and 20 s
    assert player.limit is None
    assert player.rate == pytest.approx(3200 / 3)
    gaps = [seconds for seconds in slept if seconds != 2.5]
    assert len(set(gaps)) == 2
    assert all(GAP_SECONDS[0] <= gap <= GAP_SECONDS[1] for gap in gaps)
    assert [fault.seconds for fault in happened] == [2.5, 2.5]


def test_the_same_seed_draws_the_same(parts: Parts, player: FakePlayer, faults: list[Fault]) -> None:
    drawn = [[fault.notes for fault in play(parts, player, Settings(seed=seed))] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_load_that_is_over_goes_on_slowly(parts: Parts, player: FakePlayer, faults: list[Fault]) -> None:
    player.operations = 3300
    play(parts, player, Settings())
    assert player.asked == [(1000, 1.0), (3000, 1.0)]
    assert player.rate == 1.0


def test_no_fault_strikes_once_the_load_has_failed(parts: Parts, player: FakePlayer, faults: list[Fault]) -> None:
    answers = iter([True, False])
    assert [fault.fault for fault in play(parts, player, Settings(), lambda: next(answers))] == ["a"]


def test_without_faults_the_load_has_no_limit(parts: Parts, player: FakePlayer, faults: list[Fault]) -> None:
    player.rate = 7.0
    assert play(parts, player, Settings(faults="none")) == []
    assert (player.limit, player.rate) == (None, 0.0)


def test_the_spark_job_is_watched_after_each_fault(parts: Parts, player: FakePlayer, faults: list[Fault]) -> None:
    parts.diff.kill()
    play(parts, player, Settings())
    assert parts.calls.count("start Spark job") == 1


def test_all_is_played_while_faults_strike(parts: Parts, player: FakePlayer, faults: list[Fault]) -> None:
    for number, node in enumerate(parts.cluster.nodes):
        node.port = 7001 + number
    played, happened = _run(Settings(operations=50), 50, parts.environment)
    assert played is player  # type: ignore[comparison-overlap]
    assert player.nodes == [("127.0.0.1", 7001), ("127.0.0.1", 7002), ("127.0.0.1", 7003)]
    assert (player.acked, player.stopped.is_set()) == (50, True)
    assert [fault.fault for fault in happened] == ["a", "b"]
    assert parts.show.loads == [("writes", 50), "end"]
    assert parts.show.said == ["50 writes acknowledged, the longest wait of a client was 1.2 s"]


@pytest.mark.parametrize(("level", "limit"), [("all", 0), ("none", None)])
def test_the_load_waits_for_its_first_fault(
    parts: Parts,
    player: FakePlayer,
    faults: list[Fault],
    monkeypatch: pytest.MonkeyPatch,
    level: str,
    limit: int | None,
) -> None:
    seen: list[int | None] = []

    def play_none(*args: Any) -> list[Happened]:
        seen.append(player.limit)
        return []

    monkeypatch.setattr(module, "_play_faults", play_none)
    _run(Settings(operations=5, faults=level), 5, parts.environment)
    assert seen == [limit]


def test_an_error_of_the_load_is_raised_and_an_error_of_a_fault_ends_the_load(
    parts: Parts, player: FakePlayer, faults: list[Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    player.failure = OSError("the load is broken")
    with pytest.raises(OSError, match="the load is broken"):
        _run(Settings(operations=5), 5, parts.environment)
    player.failure, player.endless = None, True
    player.stopped.clear()

    def broken(*args: Any) -> list[Happened]:
        raise TimeoutError("the fault is broken")

    monkeypatch.setattr(module, "_play_faults", broken)
    with pytest.raises(TimeoutError, match="the fault is broken"):
        _run(Settings(operations=5), 5, parts.environment)
    assert player.stopped.is_set()
    assert "load" not in {thread.name for thread in threading.enumerate()}


# -- the whole ----------------------------------------------------------------------------------------------------


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, parts: Parts) -> list[Any]:
    """What was done, in order, by a demo of which all parts are doubles."""
    steps: list[Any] = []

    def set_up(settings: Settings, operations: int, show: Any, stack: ExitStack) -> Any:
        steps.append(("set up", operations))
        stack.callback(steps.append, "end")
        return parts.environment

    def note(name: str, answer: Any) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            steps.append(name)
            return answer

        return noted

    monkeypatch.setattr(module, "set_up", set_up)
    monkeypatch.setattr(module, "_run", note("run", ("player", ["happened"])))
    monkeypatch.setattr(module, "drain", note("drain", {"a": 1}))

    def verify(settings: Settings, operations: int, environment: Any, *rest: Any) -> dict[str, Any]:
        steps.append(("verify", operations, *rest))
        return {"keys": 1}

    monkeypatch.setattr(module, "_verify", verify)
    return steps


def present(steps: list[Any]) -> Callable[[dict[str, Any], Any], None]:
    return lambda report, environment: steps.append(("present", dict(report)))


def test_the_report_is_presented_while_all_still_runs(parts: Parts, steps: list[Any]) -> None:
    show: Any = parts.show
    report = run(Settings(operations=77), show, present(steps))
    assert steps == [
        ("set up", 77), "run", "drain", ("verify", 77, "player", ["happened"], {"a": 1}), ("present", report), "end",
    ]  # fmt: skip
    assert report["keys"] == 1
    assert report["seconds"].keys() == {"setup", "run", "drain", "verify"}
    assert all(0 <= seconds < 60 for seconds in report["seconds"].values())


def test_the_writes_of_a_trace_are_counted(parts: Parts, steps: list[Any], tmp_path: Path) -> None:
    trace = tmp_path / "t.tsv"
    trace.write_text(TRACE)
    show: Any = parts.show
    run(Settings(trace=trace, operations=77), show, present(steps))
    assert steps[0] == ("set up", 2)


def test_a_failure_is_explained_and_ends_all(parts: Parts, steps: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise DeelogError("does not progress")

    monkeypatch.setattr(module, "drain", broken)
    show: Any = parts.show
    with pytest.raises(RunError, match="does not progress"):
        run(Settings(), show, present(steps))
    assert steps[1:] == ["run", "end"]


def test_with_keep_it_says_what_to_try_until_it_is_interrupted(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = iter([None, None])

    def sleep(seconds: float) -> None:
        if next(watched, 0) == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep))
    for number, node in enumerate(parts.cluster.nodes):
        node.port, node.pid = 7001 + number, 101 + number
    parts.diff.kill()
    stay(parts.environment)
    assert parts.calls == ["kill Spark job", "start Spark job"]
    show: Any = parts.show
    printed = show.console.file.getvalue().splitlines()
    assert f"files     {parts.environment.directory}, a log for each" in printed
    assert "Kafka     127.0.0.1:9, topics p.c and p.c.diff" in printed
    assert "node n3   127.0.0.1:7003" in printed
    assert "  redis-cli -c -p 7001 set hello world" in printed
    assert "  kill -9 103; redis-cli -p 7001 cluster slots" in printed
    assert printed[-1] == "Ctrl-C ends it all."


# -- the report ---------------------------------------------------------------------------------------------------


class Topics:
    """What the two topics hold."""

    def __init__(self) -> None:
        entry = Entry(b"a", b"abc", None)
        self.changes = ChangeTopic(
            entries={b"a": entry},
            captured={b"a": [Captured(content_of(b"abc"), 105, "put")]},
            resets=Counter(overflow=2),
            open_resets=1,
            reset_rows=9,
            written=11,
            duplicates=3,
            reasons=Counter(put=11),
            owners=[Ownership(1, 1, "n1@1", 1), Ownership(1, 2, "n2@1", 1500)],
        )
        self.diff = DiffTopic(entries={b"a": entry}, duplicates=4)
        self.caches = {b"a": entry}


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    topics = Topics()

    def read_topic(bootstrap: str, topic: str) -> Iterator[str]:
        assert bootstrap == "127.0.0.1:9"
        return iter([topic])

    def folded(answer: Any, name: str) -> Callable[[str, Iterable[str], bool], Any]:
        def fold(topic: str, records: Iterable[str], redis: bool) -> Any:
            assert [topic, *records] == [name, name]
            assert not redis
            return answer

        return fold

    monkeypatch.setattr(module, "read_topic", read_topic)
    monkeypatch.setattr(module, "fold_changes", folded(topics.changes, "p.c"))
    monkeypatch.setattr(module, "fold_diff", folded(topics.diff, "p.c.diff"))
    return topics


def verified(parts: Parts, player: FakePlayer, topics: Topics, settings: Settings) -> dict[str, Any]:
    given: Any = player
    happened = [Happened("kill", 1000, ["n1"])]
    return _verify(settings, 10, parts.environment, given, happened, topics.caches)


def test_the_report_has_what_was_compared_and_counted(parts: Parts, player: FakePlayer, topics: Topics) -> None:
    player.operations, player.refused, player.attempts = 9, 2, 14
    player.history = [History({b"a": [Sent(content_of(b"abc"), 100, 110)]})]
    parts.monitor.totals = [1, 2, 3, 4]
    parts.environment.diff_restarts = 6
    report = verified(parts, player, topics, Settings(nodes=3, seed=5))
    assert problems(report) == [
        "9 writes were not acknowledged", "3 operations are in the change topic twice",
        "4 records are in the diff topic twice", "1 resets are open: begun and never ended",
    ]  # fmt: skip
    expected = {
        "operations": 10,
        "acked": 1,
        "unacked": 9,
        "refused": 2,
        "resent": 5,
        "lost_acked": 0,
        "phantoms": 0,
        "covered_by_reset": 0,
        "covered_by_write": 0,
        "written": 11,
        "reasons": {"put": 11},
        "duplicates": 3,
        "diff_duplicates": 4,
        "takeovers": 1,
        "takeover_ms": {"p50": 500, "max": 500},
        "resets": {"overflow": 2},
        "open_resets": 1,
        "reset_rows": 9,
        "pruned": 1,
        "fenced": 2,
        "zombie_commits_refused": 3,
        "transactions": 4,
        "diff": topics.diff.counts,
        "diff_restarts": 6,
        "keys": 1,
        "differing_keys": 0,
        "equal": True,
        "final": None,
        "longest_write_ms": 1234,
        "nodes": 3,
        "seed": 5,
        "trace": None,
        "examples": [],
    }
    assert {name: report[name] for name in expected} == expected
    assert report.keys() == {*expected, "faults"}
    (fault,) = report["faults"]
    assert (fault["fault"], fault["nodes"]) == ("kill", ["n1"])
    paths = [call for call in parts.calls if call.startswith("total")]
    assert paths == ["total pruned", "total fenced", "total zombie_commits_refused", "total transactions"]


def test_a_difference_is_one_with_its_key(parts: Parts, player: FakePlayer, topics: Topics) -> None:
    topics.diff.entries = {}
    player.history = [History({b"b": [Sent(content_of(b"x"), 100, 110)]})]
    report = verified(parts, player, topics, Settings())
    assert (report["differing_keys"], report["equal"], report["lost_acked"]) == (1, False, 1)
    assert report["examples"] == [
        "b'a': diff: lacks the key", "lost: (b'b', 0)", "by no client: (b'a', 0)",
    ]  # fmt: skip


def test_a_reset_counts_for_the_keys_of_its_segment(parts: Parts, player: FakePlayer, topics: Topics) -> None:
    player.history = [History({b"b": [Sent(content_of(b"x"), 100, 110)]})]
    topics.changes.reset_ends = {segment_of(b"b", parts.cluster.segments): [200]}
    assert verified(parts, player, topics, Settings())["covered_by_reset"] == 1


@pytest.mark.parametrize(
    ("level", "listed", "final"),
    [
        ("none", "a\tabc\n", {"file": "t.final.tsv", "keys": 1, "differing_keys": 0, "equal": True}),
        ("survivable", "a\tab\nb\tx\n", {"file": "t.final.tsv", "keys": 2, "differing_keys": 1, "equal": False}),
        ("all", "a\tabc\n", None),  # the caches lose entries
        ("none", None, None),
    ],
)
def test_the_end_of_a_history_is_compared_where_nothing_is_lost(
    parts: Parts, player: FakePlayer, topics: Topics, tmp_path: Path, level: str, listed: str | None, final: Any
) -> None:
    trace = tmp_path / "t.tsv"
    if listed is not None:
        (tmp_path / "t.final.tsv").write_text(listed)
    report = verified(parts, player, topics, Settings(trace=trace, faults=level))
    assert (report["final"], report["trace"]) == (final, str(trace))


def test_examples_are_ten_of_a_kind() -> None:
    keys = [b"%d" % number for number in range(12)]
    differing = dict.fromkeys(keys, "lacks the key")
    audit = Audit(lost=[(key, 1) for key in keys], phantoms=[(key, 2) for key in keys])
    lines = _examples(Verdict(audit, differing, keys, 12, 0))
    assert len(lines) == 40
    assert lines[::10] == [
        "b'0': lacks the key", "lost: (b'0', 1)", "by no client: (b'0', 2)", "not as the history ends: 0",
    ]  # fmt: skip
    assert _examples(Verdict(Audit(), {}, None, 0, 0)) == []


def test_half_and_all_of_the_takeovers() -> None:
    assert _percentiles([]) == {"p50": None, "max": None}
    assert _percentiles([5, 1, 100]) == {"p50": 5, "max": 100}
    assert _percentiles([1, 4]) == {"p50": 2, "max": 4}


def test_how_far_spark_is_in_a_note() -> None:
    assert _diff_note(None) == "Spark has read nothing"
    assert _diff_note({"records": 12_345}) == "Spark has read 12,345 records"
