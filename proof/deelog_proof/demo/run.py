"""`deelog demo`: real nodes, a real Kafka, a real Spark job, a load, faults, and the proof at the end.

Everything is a process of its own and is driven from outside. Weighed in docs/decisions.md, "The demo runs
processes".
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from deelog_connector.devkafka.broker import HOST
from deelog_proof.audit.topics import fold_changes, fold_diff, read_topic
from deelog_proof.audit.verify import Verdict, verify
from deelog_proof.demo.display import Display
from deelog_proof.demo.faults import FaultContext, planned
from deelog_proof.demo.report import shown
from deelog_proof.harness.drain import drain
from deelog_proof.harness.environment import (
    GAP_SECONDS,
    LEAD_SECONDS,
    SEGMENTS,
    DemoError,
    Environment,
    Settings,
    explained,
    planned_seconds,
    progress_of,
    set_up,
    writes_of,
)
from deelog_proof.load.history import merged
from deelog_proof.load.player import Player
from deelog_proof.load.traces import final_of, read_final
from deelog_schemas.errors import DeelogError
from deelog_schemas.operation import Entry

_T = TypeVar("_T")
_SLOWEST = 1.0
_LOOK_SECONDS = 0.5


def run(settings: Settings, show: Display, present: Callable[[dict[str, Any], Environment], None]) -> dict[str, Any]:
    """Runs the demo and returns its report, which `present` gets while everything still runs.

    Leaves no process, and no file except those of `settings.files`.

    Call it from the main thread. Raises `DeelogError` where a part could not be set up or does not progress.
    """
    with ExitStack() as stack:
        environment = set_up(settings, show, stack)
        try:
            player = _timed(environment, "run", lambda: _run(environment))
            caches = _timed(environment, "drain", lambda: drain(environment))
            show.say("reading the change topic and the diff with a plain consumer, and comparing key by key")
            report = _timed(environment, "verify", lambda: _verify(environment, player, caches))
        except (TimeoutError, DeelogError) as error:
            raise DemoError(explained(environment, error)) from error
        report["seconds"] = {name: round(value, 1) for name, value in environment.seconds.items()}
        present(report, environment)
        return report


def stay(environment: Environment) -> None:
    """Prints addresses and commands to try, and returns at Ctrl-C. Restarts the Spark job if it ends."""
    nodes, topics, kafka = environment.cluster.nodes, environment.topics, environment.kafka.bootstrap
    lines = [
        "",
        f"Kafka     {kafka}, topics {topics.changes} and {topics.diff}",
        *(f"{node.name:9} {HOST}:{node.port}" for node in nodes),
        f"files     {environment.directory}, a log for each",
        "",
        "Write, and see the change and the diff of it:",
        f"  redis-cli -c -p {nodes[0].port} set hello world",
        f"  kcat -b {kafka} -X isolation.level=read_committed -t {topics.diff} -o -1 -e",
        "How far the Spark job is:",
        f"  deelog diff --status --config {environment.directory}/diff.properties",
        "Kill a node, and see who takes over:",
        f"  kill -9 {nodes[-1].pid}; redis-cli -p {nodes[0].port} cluster slots",
        "",
        "Ctrl-C ends it all.",
    ]
    environment.show.console.print("\n".join(lines), markup=False)
    try:
        while True:
            environment.supervise()
            time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        return


def _run(environment: Environment) -> Player:
    """Runs the load in threads and the faults in this one."""
    settings, show = environment.settings, environment.show
    player = Player(environment.cluster.addresses())
    player.limit = 0 if planned(settings.faults) else None  # raised fault by fault
    failure: list[BaseException] = []

    def play() -> None:
        try:
            player.run(writes_of(settings))
        except BaseException as error:  # noqa: BLE001  # raised again below, in the main thread
            failure.append(error)

    thread = threading.Thread(target=play, name="load", daemon=True)
    ticker = _Ticker(environment, player)
    show.begin("writes", environment.operations)
    try:
        thread.start()
        ticker.start()
        _play_faults(environment, player, lambda: not failure)
        while thread.is_alive():
            thread.join(0.2)
            environment.supervise()
    finally:
        player.stop()
        thread.join()
        ticker.stop()
        show.end()
    if failure:
        raise failure[0]
    show.say(f"{player.acked:,} writes acknowledged, the longest wait of a client was {player.longest_ms / 1000:.1f} s")
    return player


def _play_faults(environment: Environment, player: Player, goes_on: Callable[[], bool]) -> None:
    """One fault after the other, spread over the load."""
    faults = planned(environment.settings.faults)
    draw = random.Random(f"faults/{environment.settings.seed}")
    context = FaultContext(
        environment.cluster,
        environment.kafka,
        environment.topics.changes,
        environment.monitor,
        draw,
        environment.show.say,
    )
    total = planned_seconds(environment.settings)
    for number, fault in enumerate(faults):
        # Each fault has its share of the load, so that load is left for the last one even if the others are slow.
        rest = planned_seconds(environment.settings, number + 1)
        player.limit = round(environment.operations * (1 - rest / total))
        share = planned_seconds(environment.settings, number) - rest
        player.rate = max(_SLOWEST, (player.limit - player.operations) / share)
        time.sleep(draw.uniform(*GAP_SECONDS))  # when the fault strikes, drawn from the seed
        if not goes_on():
            return
        begin = time.monotonic()
        happened = fault.run(context)
        happened.seconds = round(time.monotonic() - begin, 2)
        environment.happened.append(happened)
        environment.supervise()
    player.limit = None
    player.rate = max(_SLOWEST, (environment.operations - player.operations) / LEAD_SECONDS) if faults else 0.0


class _Ticker:
    """Shows the load's progress, from a thread of its own."""

    def __init__(self, environment: Environment, player: Player) -> None:
        self._environment, self._player = environment, player
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ticker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(0.2):
            self._environment.show.advance(self._player.acked, _diff_note(progress_of(self._environment.checkpoint)))


def _diff_note(progress: dict[str, Any] | None) -> str:
    return "Spark has read nothing" if progress is None else f"Spark has read {progress['records']:,} records"


def _verify(environment: Environment, player: Player, caches: dict[bytes, Entry]) -> dict[str, Any]:
    settings = environment.settings
    bootstrap, topics = environment.kafka.bootstrap, environment.topics
    changes = fold_changes(topics.changes, read_topic(bootstrap, topics.changes))
    diff = fold_diff(topics.diff, read_topic(bootstrap, topics.diff))
    # With the loss of all owners the caches lose entries: then only diff and caches must agree.
    listed = final_of(settings.trace) if settings.trace is not None and settings.faults != "all" else None
    verdict = verify(
        merged(player.histories()),
        caches,
        changes,
        diff,
        segments=SEGMENTS,
        happened=environment.happened,
        final=read_final(listed) if listed else None,
    )
    monitor = environment.monitor
    return {
        "operations": environment.operations,
        "acked": verdict.audit.acked,
        "unacked": environment.operations - verdict.audit.acked,
        "refused": player.refused,
        "resent": player.attempts - player.operations,
        "lost_acked": len(verdict.audit.lost),
        "covered_by_reset": verdict.audit.covered_by_reset,
        "covered_by_write": verdict.audit.covered_by_write,
        "phantoms": len(verdict.audit.phantoms),
        "written": changes.written,
        "reasons": dict(changes.reasons),
        "duplicates": changes.duplicates,
        "diff_duplicates": diff.duplicates,
        "pruned": monitor.total("pruned"),
        "takeovers": verdict.takeovers,
        "takeover_ms": _percentiles(verdict.takeover_ms),
        "resets": dict(changes.resets),
        "open_resets": changes.open_resets,
        "reset_rows": changes.reset_rows,
        "fenced": monitor.total("fenced"),
        "zombie_commits_refused": monitor.total("zombie_commits_refused"),
        "transactions": monitor.total("transactions"),
        "diff": diff.counts,
        "diff_restarts": environment.diff_restarts,
        "keys": verdict.keys,
        "differing_keys": len(verdict.differing),
        "equal": not verdict.differing,
        "final": _final(listed, verdict),
        "faults": [happened.as_dict() for happened in environment.happened],
        "longest_write_ms": round(player.longest_ms),
        "nodes": settings.nodes,
        "seed": settings.seed,
        "trace": str(settings.trace) if settings.trace else None,
        "examples": _examples(verdict),
        "seconds": {},
    }


def _final(listed: Path | None, verdict: Verdict) -> dict[str, Any] | None:
    if listed is None or verdict.final is None:
        return None
    return {
        "file": listed.name,
        "keys": len(read_final(listed)),
        "differing_keys": len(verdict.final),
        "equal": not verdict.final,
    }


def _examples(verdict: Verdict) -> list[str]:
    lines = [f"{key!r}: {problem}" for key, problem in list(verdict.differing.items())[:10]]
    lines += [f"lost: {line}" for line in shown(verdict.audit.lost)]
    lines += [f"by no client: {line}" for line in shown(verdict.audit.phantoms)]
    return lines + [f"not as the history ends: {line}" for line in shown(verdict.final or [])]


def _percentiles(values: list[int]) -> dict[str, int | None]:
    return {"p50": round(statistics.median(values)) if values else None, "max": max(values, default=None)}


def _timed(environment: Environment, name: str, act: Callable[[], _T]) -> _T:
    begin = time.monotonic()
    try:
        return act()
    finally:
        environment.seconds[name] = time.monotonic() - begin
