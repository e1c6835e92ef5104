"""A checkpoint's files, without Kafka and Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deelog_spark.batches.checkpoint import LAYOUT, START, Batch, Checkpoint, Identity, Totals
from deelog_spark.errors import BusyError, CheckpointError
from deelog_spark.folding.walk import Open, Segment, position_bytes

IDENTITY = Identity(LAYOUT, "t", "id", "p", 2, 8)
OPEN = Open("r1", "overflow", 5, position_bytes((1, 2)), position_bytes((1, 3)))
TOTALS = Totals(1, 10, 2, {"takeover": 1}, {"c": 1, "u": 2, "d": 3}, {"c": 4, "u": 0, "d": 0}, 5)
BATCH = Batch(
    "cp", 3, {0: 1, 1: 2}, {0: 4, 1: 5}, {0: Segment(position_bytes((9, 9))), 7: Segment(bytes(12), OPEN)}, TOTALS,
    written_ms=7, void=[(7, 3)], small=True, kept=False, newest_ms=6,
)  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[Checkpoint]:
    """A locked checkpoint."""
    made = Checkpoint(f"file://{tmp_path}/cp")
    made.lock()
    yield made
    made.release()


def draft(checkpoint: Checkpoint, number: int) -> Path:
    """A file of rows that is not in its place yet."""
    place = checkpoint.rows_draft(number)
    place.mkdir()
    (place / "0.parquet").write_bytes(b"rows")
    return place


def test_a_batch_is_read_as_it_was_written(checkpoint: Checkpoint) -> None:
    assert checkpoint.plan(3) is None
    assert checkpoint.write_plan(BATCH, None) == BATCH
    assert checkpoint.plan(3) == BATCH
    checkpoint.write_state(BATCH)
    assert checkpoint.state(3) == checkpoint.latest() == BATCH


def test_rows_count_once_the_plan_moves_them(checkpoint: Checkpoint) -> None:
    written = draft(checkpoint, 3)
    assert not checkpoint.rows_path(3).exists()
    checkpoint.write_plan(replace(BATCH, rows=1), written)
    assert not written.exists()
    assert [path.read_bytes() for path in checkpoint.rows_path(3).iterdir()] == [b"rows"]
    again = draft(checkpoint, 3)
    (again / "1.parquet").write_bytes(b"more")
    checkpoint.write_plan(replace(BATCH, rows=2), again)
    assert sorted(path.name for path in checkpoint.rows_path(3).iterdir()) == ["0.parquet", "1.parquet"]


def test_a_draft_without_rows_and_one_of_a_killed_attempt_go(checkpoint: Checkpoint) -> None:
    written = draft(checkpoint, 3)
    checkpoint.write_plan(BATCH, written)
    assert not written.exists()
    assert not checkpoint.rows_path(3).exists()
    draft(checkpoint, 3)
    assert not checkpoint.rows_draft(3).exists()


def test_a_start_counts_when_it_is_finished(checkpoint: Checkpoint) -> None:
    assert not checkpoint.begun(IDENTITY)
    checkpoint.begin(IDENTITY)
    assert checkpoint.begun(IDENTITY)
    assert not checkpoint.begun(replace(IDENTITY, topic_id="other"))
    assert checkpoint.started(IDENTITY) is None
    assert checkpoint.now() is None
    start = replace(BATCH, number=START)
    checkpoint.finish_start(IDENTITY, start)
    assert checkpoint.started(IDENTITY) == checkpoint.now() == start
    checkpoint.write_state(BATCH)
    assert checkpoint.started(IDENTITY) == start
    assert checkpoint.now() == BATCH


@pytest.mark.parametrize(
    ("field", "value"), [("topic", "u"), ("topic_id", "other"), ("prefix", "q"), ("partitions", 3), ("segments", 16)]
)
def test_a_checkpoint_of_another_identity_is_an_error(checkpoint: Checkpoint, field: str, value: Any) -> None:
    checkpoint.finish_start(IDENTITY, BATCH)
    with pytest.raises(CheckpointError, match=f"belongs to {field} {getattr(IDENTITY, field)}, not to {value}: "):
        checkpoint.started(replace(IDENTITY, **{field: value}))


def test_a_checkpoint_of_another_layout_or_a_damaged_one_is_an_error(checkpoint: Checkpoint) -> None:
    checkpoint.finish_start(IDENTITY, BATCH)
    path = checkpoint.root / "start.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"layout": LAYOUT + 1}))
    with pytest.raises(CheckpointError, match=f"has layout {LAYOUT + 1}, this version knows {LAYOUT}"):
        checkpoint.started(IDENTITY)
    path.write_text('{"layout"')
    with pytest.raises(CheckpointError, match=r"start\.json is damaged \(.*: delete the checkpoint"):
        checkpoint.started(IDENTITY)


def test_the_last_three_batches_are_kept(checkpoint: Checkpoint) -> None:
    for number in range(12):
        batch = replace(BATCH, number=number, rows=1)
        checkpoint.write_plan(batch, draft(checkpoint, number))
        checkpoint.write_state(batch)
    unfinished = draft(checkpoint, 5)
    checkpoint.write_state(replace(BATCH, number=12))
    for name, kept in (("plans", {10, 11}), ("state", {10, 11, 12}), ("rows", {10, 11})):
        assert {int(path.stem) for path in (checkpoint.root / name).iterdir() if path != unfinished} == kept
    assert unfinished.exists(), "a draft has no number that counts"
    latest = checkpoint.latest()
    assert latest is not None
    assert latest.number == 12


def test_files_of_a_shared_file_system_are_left_alone(checkpoint: Checkpoint) -> None:
    names = (".nfs000000000001", ".nfs000000000001.json", "7.json.swp")
    for place in ("plans", "state", "rows"):
        for name in names:
            (checkpoint.root / place / name).touch()
    for number in range(5):
        checkpoint.write_state(replace(BATCH, number=number))
    latest = checkpoint.latest()
    assert latest is not None
    assert latest.number == 4
    assert {p.name for p in (checkpoint.root / "state").iterdir()} == {*names, "2.json", "3.json", "4.json"}


def test_forgetting_leaves_nothing_but_the_lock(checkpoint: Checkpoint) -> None:
    checkpoint.begin(IDENTITY)
    checkpoint.finish_start(IDENTITY, BATCH)
    checkpoint.write_plan(replace(BATCH, rows=1), draft(checkpoint, 3))
    checkpoint.write_state(BATCH)
    (checkpoint.spark / "offsets").mkdir(parents=True)
    checkpoint.forget()
    assert sorted(p.name for p in checkpoint.root.rglob("*")) == ["lock", "plans", "rows", "state"]
    assert checkpoint.now() is None


def test_spark_says_how_far_a_batch_reads(checkpoint: Checkpoint) -> None:
    assert checkpoint.reads_to(4) is None
    offsets = checkpoint.spark / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "4").write_text('v1\n{"batchWatermarkMs":0}\n{"t":{"0":17,"1":4}}\n')
    assert checkpoint.reads_to(4) == {0: 17, 1: 4}


def test_one_process_at_a_time_has_the_lock(checkpoint: Checkpoint) -> None:
    other = Checkpoint(str(checkpoint.root))
    with pytest.raises(BusyError, match="another diff job uses the checkpoint"):
        other.lock()
    checkpoint.release()
    other.lock()
    other.release()


def test_a_location_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be written"):
        Checkpoint(str(tmp_path / "file")).lock()


def test_progress_has_totals_and_input_offsets(checkpoint: Checkpoint) -> None:
    checkpoint.write_progress(BATCH)
    progress = json.loads((checkpoint.root / "progress.json").read_text())
    assert progress["input_offsets"] == {"0": 4, "1": 5}
    assert (progress["batch"], progress["records"], progress["resets"]) == (3, 10, {"takeover": 1})


def test_a_state_has_the_totals_up_to_its_batch() -> None:
    plan = replace(BATCH, totals=Totals(1, 3, 1, {"takeover": 1, "clear": 1}))
    state = plan.done(TOTALS, {"change": {"c": 1}, "reset": {"d": 2}}, 4)
    assert state.totals == Totals(
        2, 13, 3, {"takeover": 2, "clear": 1}, {"c": 2, "u": 2, "d": 3}, {"c": 4, "u": 0, "d": 2}, 9
    )
    assert state.written_ms > 0
    assert replace(state, totals=plan.totals, written_ms=plan.written_ms) == plan


DAMAGED = r"is damaged \([^\n]+\): delete the checkpoint; the job then starts over and emits differences only$"


@pytest.mark.parametrize("content", ["", "v1\n{}\n", 'v1\n{"t":{"0":17,', "v1\n[]\n", 'v1\n{"t":{"0":"x"}}', "7"])
def test_damaged_offsets_of_spark_are_an_error(checkpoint: Checkpoint, content: str) -> None:
    offsets = checkpoint.spark / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "4").write_text(content)
    with pytest.raises(CheckpointError, match=rf"offsets/4 {DAMAGED}"):
        checkpoint.reads_to(4)


@pytest.mark.parametrize("content", ["", "{}", "[]", "7", "null", '{"layout":2}'])
def test_a_damaged_file_of_the_job_is_an_error(checkpoint: Checkpoint, content: str) -> None:
    checkpoint.finish_start(IDENTITY, BATCH)
    checkpoint.write_plan(BATCH, None)
    checkpoint.write_state(BATCH)
    for name in ("start.json", "plans/3.json", "state/3.json"):
        (checkpoint.root / name).write_text(content)
    reads: list[tuple[str, Callable[[], Any]]] = [
        (r"start\.json", lambda: checkpoint.started(IDENTITY)),
        (r"plans/3\.json", lambda: checkpoint.plan(3)),
        (r"state/3\.json", checkpoint.latest),
    ]
    for name, read in reads:
        with pytest.raises(CheckpointError, match=rf"{name} {DAMAGED}"):
            read()
    (checkpoint.root / "state" / "3.json").unlink()
    with pytest.raises(CheckpointError, match=rf"start\.json {DAMAGED}"):
        checkpoint.now()
