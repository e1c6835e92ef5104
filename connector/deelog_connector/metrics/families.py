"""The metrics of a connector as plain values; `prometheus.py` converts them for Prometheus.

They are read at a scrape, from counters that the connector keeps anyway: nothing is counted twice, and the write path
does not know of them. Weighed in docs/decisions.md, "Figures are read where they are kept".

Debezium's names keep Debezium's meaning; `docs/metrics.md` has what each means here and which are left out. Debezium's
table is a cache here, its snapshot a reset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from deelog_connector.core.durations import Durations
from deelog_connector.core.effects import Cause
from deelog_connector.core.segment import RESETTING, Phase, Segment
from deelog_connector.runtime.connector import Connector
from deelog_schemas import __version__
from deelog_schemas.member import node_id_of

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
Sample = tuple[tuple[str, ...], float | Durations]
OURS = ("name", "cache")
"""Labels of all `deelog_` metrics: `topic.prefix` and the cache."""
_DEBEZIUM = ("plugin", "name", "context", "cache")


class MetricFamily(NamedTuple):
    """One name with its samples: values of `labels`, and a number, or `Durations` where `kind` is a histogram."""

    name: str
    help: str
    kind: str
    labels: tuple[str, ...]
    samples: list[Sample]


def merged(figures: Iterable[MetricFamily]) -> Iterator[MetricFamily]:
    """Joins families of one name: Prometheus needs each name once."""
    by_name: dict[str, MetricFamily] = {}
    for figure in figures:
        known = by_name.get(figure.name)
        if known is None:
            by_name[figure.name] = figure._replace(samples=list(figure.samples))
        else:
            known.samples.extend(figure.samples)
    yield from by_name.values()


def placed(families: Iterable[MetricFamily], name: str, cache: str) -> Iterator[MetricFamily]:
    """`deelog_` metrics with their common labels."""
    for figure in families:
        samples = [((name, cache, *labels), value) for labels, value in figure.samples]
        yield figure._replace(labels=(*OURS, *figure.labels), samples=samples)


def figures(cache: str, connector: Connector, now: float, wall: float) -> Iterator[MetricFamily]:
    """All metrics of one connector. `now` is as for `poll`, `wall` in Unix seconds. On the loop's thread."""
    name = str(connector.config["topic.prefix"])
    for attribute, help_, context, value in _debezium(cache, connector, now, wall):
        labels: tuple[str, ...] = _DEBEZIUM
        where: tuple[str, ...] = ("deelog", name, context, cache)
        if attribute == "RowsScanned":  # Debezium's name has the table in it
            labels, where = (*_DEBEZIUM, "table"), (*where, cache)
        yield MetricFamily(f"debezium_metrics_{attribute}", help_, GAUGE, labels, [(where, value)])
    up = connector.observed.kafka_problem(now) is None
    kafka = MetricFamily("deelog_kafka_up", "Whether the brokers answer.", GAUGE, (), [((), up)])
    help_ = "Partitions that take no records for now, or whose claims are not read yet; their segments wait."
    withheld = MetricFamily("deelog_withheld_partitions", help_, GAUGE, (), [((), len(connector.core.withheld))])
    for part in (
        [kafka, withheld],
        _counted(connector),
        _op_log(connector, wall),
        _segments(connector),
        _durations(connector),
    ):
        yield from placed(part, name, cache)
    member, labels = connector.member, (*OURS, "node", "member", "version")
    info = (name, cache, node_id_of(member), member, __version__)
    yield MetricFamily("deelog_info", "The node and its version.", GAUGE, labels, [(info, 1)])


def _debezium(cache: str, connector: Connector, now: float, wall: float) -> Iterator[tuple[str, str, str, float]]:
    """Attribute, help, context, value."""
    core, seen = connector.core, connector.observed
    budget, primaries = core.budget, core.primaries()
    resetting = any(s.phase in RESETTING for s in primaries)
    undone = any(s.phase not in (Phase.WRITING, Phase.RELEASING, Phase.RELEASED) or s.owed for s in primaries)
    running = connector.started and not connector.failure.done() and connector.halted is None
    for context, events, at in (("streaming", seen.changes, seen.change_us), ("snapshot", seen.rows, seen.row_us)):
        since = -1.0 if at == 0 else max(0.0, round(wall * 1000 - at / 1000))
        yield "MilliSecondsSinceLastEvent", "Since the last change was taken up for writing; -1: none.", context, since
        yield "TotalNumberOfEventsSeen", "Changes (streaming) and rows of resets (snapshot) written.", context, events
        yield "QueueTotalCapacity", "Most operations in the op log.", context, budget.max_operations
        yield "QueueRemainingCapacity", "Room in it.", context, max(0, budget.max_operations - budget.operations)
        yield "MaxQueueSizeInBytes", "Most bytes in the op log.", context, budget.max_bytes
        yield "CurrentQueueSizeInBytes", "Bytes in it.", context, budget.bytes
        filtered = seen.piped["filtered"] if context == "streaming" else 0
        for attribute in ("NumberOfEventsFiltered", "NumberOfEventsSkipped"):  # `Skipped` is the older name
            yield attribute, "Changes that were left out.", context, filtered
    for attribute, value in (("Create", seen.creates), ("Update", seen.updates), ("Delete", seen.deletes)):
        yield f"TotalNumberOf{attribute}EventsSeen", f"{attribute}s written.", "streaming", value
    yield "NumberOfErroneousEvents", "Changes that no record could be made of.", "streaming", seen.piped["erroneous"]
    yield "Connected", "Whether the connector is attached to its cache and works.", "streaming", running
    behind = -1.0 if seen.behind_us < 0 else seen.behind_us / 1000
    yield "MilliSecondsBehindSource", "From the write to its being encoded, of the last; -1: none.", "streaming", behind
    yield "TotalTableCount", "Caches that this connector captures.", "snapshot", 1
    yield "RemainingTableCount", "Of them, those not wholly in Kafka yet.", "snapshot", undone
    yield "SnapshotRunning", "Whether a segment is being reset.", "snapshot", resetting
    yield "SnapshotPaused", "Whether one would be but for a pause.", "snapshot", resetting and connector.state.paused
    done = bool(primaries) and not undone
    yield "SnapshotCompleted", "Whether all segments that this node owns are wholly in Kafka.", "snapshot", done
    aborted = core.counts.resets_aborted > 0
    yield "SnapshotAborted", "Whether a reset ended since Kafka refused a row.", "snapshot", aborted
    seconds = round(core.timing.reset_seconds(now), 3)
    yield "SnapshotDurationInSeconds", "Of the resets under way, or the last.", "snapshot", seconds
    yield "RowsScanned", "Rows of resets written.", "snapshot", seen.rows


_RESETS = (
    "initial",
    "start",
    "hole",
    "unknown_history",
    "open_reset",
    "end_beyond",
    "phantom_ahead",
    "truncated",
    "topic_recreated",
    "positions_lost",
    "overflow",
    "clear",
    "signal",
    "refused",
    "owners_lost",
    "unclean_election",
    "stream_lost",
    "unknown_command",
)
_OVERFLOWS = ("block", "coalesce", "reset", "backup")
"""Exported from the start, at 0: the first increase of a counter that begins with 1 is not visible."""


def _counted(connector: Connector) -> Iterator[MetricFamily]:
    counts, core = connector.core.counts, connector.core
    single = {
        "operations_written": ("Operations that committed transactions hold.", counts.written),
        "operations_pruned": ("Operations dropped from op logs, since Kafka holds them.", counts.pruned),
        "oplog_overdrawn": ("Operations appended beyond the op log's limit.", core.budget.overdrawn),
        "transactions": ("Transactions committed.", counts.transactions),
        "reset_rows": ("Rows of resets committed.", counts.reset_rows),
        "fences": ("Producers that this node fenced.", counts.fenced),
        "corrections": ("Operations written in the place of what no owner holds.", counts.corrections),
        "truncations": ("Times a partition was found to have lost records.", counts.truncations),
        "scans_in_vain": ("Times one's own record was hidden by an open transaction.", counts.scans_in_vain),
    }
    for name, (help_, value) in single.items():
        yield MetricFamily(f"deelog_{name}_total", help_, COUNTER, (), [((), value)])
    failed = {str(cause): connector.failed_transactions[cause] for cause in Cause}
    resets = dict.fromkeys(_RESETS, 0) | counts.resets
    overflows = dict.fromkeys(_OVERFLOWS, 0) | counts.overflow
    for name, label, help_, by in (
        ("resets", "reason", "Resets completed.", resets),
        ("oplog_overflows", "policy", "Times the op log was full, by what was done.", overflows),
        ("transactions_failed", "cause", "Transactions that were not committed.", failed),
        ("signals", "outcome", "Records of the signal topic.", connector.signals.counts),
    ):
        yield MetricFamily(f"deelog_{name}_total", help_, COUNTER, (label,), _by(by))


def _by(counts: Mapping[str, int]) -> list[Sample]:
    return [((str(label),), count) for label, count in sorted(counts.items())]


def _op_log(connector: Connector, wall: float) -> Iterator[MetricFamily]:
    budget = connector.core.budget
    yield MetricFamily("deelog_oplog_operations", "Operations in the op logs.", GAUGE, (), [((), budget.operations)])
    yield MetricFamily("deelog_oplog_bytes", "Bytes in the op logs.", GAUGE, (), [((), budget.bytes)])
    oldest: dict[str, float] = {"primary": wall * 1e6, "backup": wall * 1e6}
    for segment in connector.core.owned():
        first = segment.log.oldest
        if first is not None:
            oldest[_role(segment)] = min(oldest[_role(segment)], first.ts_us)
    ages: list[Sample] = [((role,), max(0.0, round(wall - at / 1e6, 6))) for role, at in oldest.items()]
    help_ = "Age of the oldest change that Kafka is not yet known to hold; 0: it holds all."
    yield MetricFamily("deelog_oldest_unverified_change_seconds", help_, GAUGE, ("role",), ages)
    yield MetricFamily("deelog_paused", "Whether writing is paused.", GAUGE, (), [((), connector.state.paused)])


def _role(segment: Segment) -> str:
    return "primary" if segment.is_primary else "backup"


def _segments(connector: Connector) -> Iterator[MetricFamily]:
    counts = Counter((_role(s), str(s.phase)) for s in connector.core.owned())
    every = [("backup", str(Phase.IDLE)), *(("primary", str(phase)) for phase in Phase if phase is not Phase.IDLE)]
    samples: list[Sample] = [(labels, counts[labels]) for labels in every]
    yield MetricFamily("deelog_segments", "Segments of this node by role and phase.", GAUGE, ("role", "phase"), samples)


def _durations(connector: Connector) -> Iterator[MetricFamily]:
    timing = connector.core.timing
    phases: list[Sample] = [((str(phase),), spent) for phase, spent in timing.phases.items()]
    help_ = "Seconds that segments spent in a phase of a takeover or reset."
    yield MetricFamily("deelog_phase_seconds", help_, HISTOGRAM, ("phase",), phases)
    help_ = "Seconds from promotion to writing."
    yield MetricFamily("deelog_takeover_seconds", help_, HISTOGRAM, (), [((), timing.takeovers)])
    help_ = "Seconds of a committed transaction, from its first record to Kafka's answer."
    yield MetricFamily("deelog_commit_seconds", help_, HISTOGRAM, (), [((), connector.observed.commits)])
