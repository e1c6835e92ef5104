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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deelog_connector.devkafka.ports import HOST
from deelog_proof.audit.topics import fold_changes, fold_diff, read_topic
from deelog_proof.audit.verify import Verdict, verify
from deelog_proof.demo.display import Display
from deelog_proof.demo.faults import Happened
from deelog_proof.demo.redis_faults import UNREPLICATED
from deelog_proof.demo.report import shown
from deelog_proof.demo.settings import (
    GAP_SECONDS,
    LEAD_SECONDS,
    Settings,
    planned,
    planned_seconds,
    set_up,
    writes_of,
)
from deelog_proof.harness.drain import drain
from deelog_proof.harness.environment import Environment, ticking
from deelog_proof.load.history import merged
from deelog_proof.load.player import Player
from deelog_proof.load.traces import final_of, read_final
from deelog_schemas.operation import Entry

_SLOWEST = 1.0
_LOOK_SECONDS = 0.5


def run(
    settings: Settings, show: Display, present: Callable[[dict[str, Any], Environment[Any]], None]
) -> dict[str, Any]:
    """Runs the demo and returns its report, which `present` gets while everything still runs.

    Leaves no process, and no file except those of `settings.files`.

    Call it from the main thread. Raises `DeelogError` where a part could not be set up or does not progress.
    """
    with ExitStack() as stack:
        begin = time.monotonic()
        operations = settings.operations if settings.trace is None else sum(1 for _ in writes_of(settings))
        environment = set_up(settings, operations, show, stack)
        environment.seconds["setup"] = round(time.monotonic() - begin, 1)
        with environment.explained():
            with environment.timed("run"):
                player, happened = _run(settings, operations, environment)
            with environment.timed("drain"):
                caches = drain(environment)
            show.say("reading the change topic and the diff with a plain consumer, and comparing key by key")
            with environment.timed("verify"):
                report = _verify(settings, operations, environment, player, happened, caches)
        report["seconds"] = environment.seconds
        present(report, environment)
        return report


def stay(environment: Environment[Any]) -> None:
    """Prints addresses and commands to try, and returns at Ctrl-C. Restarts the Spark job if it ends."""
    cluster, topics, kafka = environment.cluster, environment.topics, environment.kafka.bootstrap
    port = cluster.servers[0].port
    lines = [
        "",
        f"Kafka     {kafka}, topics {topics.changes} and {topics.diff}",
        *(f"{server.name:9} {HOST}:{server.port}" for server in cluster.servers),
        f"files     {environment.directory}, a log for each",
        "",
        "Write, and see the change and the diff of it:",
        f"  redis-cli -c -p {port} set hello world",
        f"  kcat -b {kafka} -X isolation.level=read_committed -t {topics.diff} -o -1 -e",
        "How far the Spark job is:",
        f"  deelog diff --status --config {environment.directory}/diff.properties",
        "Kill one, and see who takes over:",
        f"  kill -9 {cluster.a_primary().pid}; redis-cli -p {port} cluster slots",
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


def _run(settings: Settings, operations: int, environment: Environment[Any]) -> tuple[Player, list[Happened]]:
    """Runs the load in threads and the faults in this one."""
    show = environment.show
    # What a primary alone has is lost with it: a write counts once its replica has it, too.
    player = Player(environment.cluster.addresses(), replicas=1 if settings.cache == "redis" else 0)
    player.limit = 0 if planned(settings) else None  # raised fault by fault
    failure: list[BaseException] = []

    def play() -> None:
        try:
            player.run(writes_of(settings))
        except BaseException as error:  # noqa: BLE001  # raised again below, in the main thread
            failure.append(error)

    thread = threading.Thread(target=play, name="load", daemon=True)
    with ticking(show, operations, lambda: show.advance(player.acked, _diff_note(environment.progress()))):
        try:
            thread.start()
            happened = _play_faults(settings, operations, environment, player, lambda: not failure)
            while thread.is_alive():
                thread.join(0.2)
                environment.supervise()
        finally:
            player.stop()
            thread.join()
    if failure:
        raise failure[0]
    show.say(f"{player.acked:,} writes acknowledged, the longest wait of a client was {player.longest_ms / 1000:.1f} s")
    return player, happened


def _play_faults(
    settings: Settings, operations: int, environment: Environment[Any], player: Player, goes_on: Callable[[], bool]
) -> list[Happened]:
    """One fault after the other, spread over the load."""
    faults = planned(settings)
    draw = random.Random(f"faults/{settings.seed}")
    total = planned_seconds(settings)
    happened: list[Happened] = []
    for number, fault in enumerate(faults):
        # Each fault has its share of the load, so that load is left for the last one even if the others are slow.
        rest = planned_seconds(settings, number + 1)
        player.limit = round(operations * (1 - rest / total))
        share = planned_seconds(settings, number) - rest
        player.rate = max(_SLOWEST, (player.limit - player.operations) / share)
        time.sleep(draw.uniform(*GAP_SECONDS))  # when the fault strikes, drawn from the seed
        if not goes_on():
            return happened
        begin = time.monotonic()
        happened.append(fault.run(environment, draw))
        happened[-1].seconds = round(time.monotonic() - begin, 2)
        environment.supervise()
    player.limit = None
    player.rate = max(_SLOWEST, (operations - player.operations) / LEAD_SECONDS) if faults else 0.0
    return happened


def _diff_note(progress: dict[str, Any] | None) -> str:
    return "Spark has read nothing" if progress is None else f"Spark has read {progress['records']:,} records"


def _verify(
    settings: Settings,
    operations: int,
    environment: Environment[Any],
    player: Player,
    happened: list[Happened],
    caches: dict[bytes, Entry],
) -> dict[str, Any]:
    bootstrap, topics = environment.kafka.bootstrap, environment.topics
    redis = settings.cache == "redis"
    changes = fold_changes(topics.changes, read_topic(bootstrap, topics.changes), redis)
    diff = fold_diff(topics.diff, read_topic(bootstrap, topics.diff), redis)
    # Those of which Kafka hears before Redis loses them are taken back: the comparison key by key looks at that.
    changes.captured = {k: records for k, records in changes.captured.items() if not k.startswith(UNREPLICATED)}
    # With the loss of all owners the caches lose entries: then only diff and caches must agree.
    listed = final_of(settings.trace) if settings.trace is not None and settings.faults != "all" else None
    verdict = verify(
        merged(player.histories()),
        caches,
        changes,
        diff,
        segments=environment.cluster.segments,
        happened=happened,
        final=read_final(listed) if listed else None,
        names_expiry=not redis,
    )
    monitor = environment.monitor
    return {
        "operations": operations,
        "acked": verdict.audit.acked,
        "unacked": operations - verdict.audit.acked,
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
        "faults": [asdict(fault) for fault in happened],
        "longest_write_ms": round(player.longest_ms),
        "nodes": settings.nodes,
        "seed": settings.seed,
        "trace": str(settings.trace) if settings.trace else None,
        "examples": _examples(verdict),
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
