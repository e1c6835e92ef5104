"""What a transform gets and what comes of its result: order, drops, resets, failures.

Bad input: all of `GARBAGE`, and a predicate that returns None.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from deelog_connector.core.effects import ControlItem, Item, OperationsItem, RowsItem
from deelog_connector.errors import TransformFailed
from deelog_connector.transforms import (
    Record,
    Row,
)
from deelog_connector.transforms.pipeline import (
    Closing,
    DeadLetter,
    PipedRows,
    Pipeline,
    Skipped,
    TransformedOperation,
)
from deelog_schemas.digest import digest_of
from deelog_schemas.entry_limit import EntryLimit
from deelog_schemas.header import Kind
from deelog_schemas.operation import Entry
from tests.connector.transforms.building import MINE, OURS, config_of, of, parts_of, put
from tests.connector.transforms.transforms_for_tests import BOMB, GARBAGE
from tests.support.memory import Memory


def test_transforms_run_in_order_and_see_before_and_after() -> None:
    config = of(
        {"type": f"{MINE}.Suffix", "text": "1"},
        {"type": f"{MINE}.Suffix", "text": "2", "predicate": "p"},
        {"type": f"{MINE}.Suffix", "text": "3", "predicate": "p", "negate": "true"},
        predicates={"p": {"type": f"{MINE}.ValueIsLong"}},
    )
    update = put(2, "k", "abc", existed=True, before=b"old")
    found = parts_of(config, put(1, "k", "ab"), update, put(3, "k", None, existed=True))
    assert [part.operation.value for part in found] == [b"ab13", b"abc12", None]
    assert [part.operation.before for part in found] == [None, b"old12", None]
    assert found[1].headers == (("seen", "u>old>abc"), ("seen", "u>old1>abc1"))
    assert found[2].headers == (("seen", "d>->-"), ("seen", "d>->-"))


def test_a_record_says_where_it_is_from() -> None:
    seen: list[Record] = []
    config = of({"type": f"{MINE}.Suffix"})
    pipeline = Pipeline.of(config, time, Counter())
    assert pipeline is not None
    pipeline._steps[0].transform.apply = lambda record: seen.append(record)  # type: ignore[method-assign]
    operation = put(9, "k", "v", 4, existed=True, expires_at=5, reason="correct")
    (item,) = pipeline([OperationsItem(3, 1, [operation])])
    assert seen[0][:5] == ("p.c", "k", "u", None, Row("v", 5))
    source = {"cache": "c", "segment": 3, "epoch": 4, "seq": 9, "reason": "correct", "ts_us": 17}
    assert dict(seen[0].source) == source
    with pytest.raises(TypeError):
        seen[0].source["seq"] = 1  # type: ignore[index]
    # A correction that is dropped becomes a delete: what it was to replace must go.
    assert item.parts == [TransformedOperation(operation._replace(value=None, expires_at=None))]  # type: ignore[union-attr]


def test_what_is_dropped_leaves_one_record_for_each_run_of_an_epoch() -> None:
    config = config_of(skipped__operations="c,d")
    operations = [
        put(1, "a", "x"), put(2, "b", None), put(3, "c", "x", existed=True), put(5, "a", "x"), put(6, "a", "x", 2),
        put(7, "a", "x", 2), put(9, "a", "x", 2), put(10, "a", None, 2, reason="correct"),
    ]  # fmt: skip
    found = parts_of(config, *operations)
    assert found == [
        Skipped(1, 1, 2), TransformedOperation(operations[2]), Skipped(1, 5, 5), Skipped(2, 6, 7), Skipped(2, 9, 9),
        TransformedOperation(operations[7])
    ]  # fmt: skip


def test_a_reset_tells_count_and_digest_of_what_is_left() -> None:
    config = of(
        {"type": f"{OURS}.Filter", "predicate": "k"},
        {"type": f"{MINE}.Suffix", "text": "!"},
        predicates={"k": {"type": f"{OURS}.KeyMatches", "pattern": "x.*"}},
        skipped__operations="c,u,d",
    )
    pipeline = Pipeline.of(config, time, Counter())
    assert pipeline is not None
    begin = ControlItem(Kind.RESET_BEGIN, 3, 1, (1, 1), 1, {"id": "r"})
    end = ControlItem(Kind.RESET_END, 3, 1, (1, 9), 2, {"id": "r", "count": 3, "digest": "of what was read"})
    rows = [Entry(b"a", b"1", None), Entry(b"x", b"2", None), Entry(b"b", b"3", 5)]
    for _ in range(2):  # a reset that begins again counts from the start
        pipeline([begin, RowsItem(3, 1, (1, 9), "signal", rows[:2], True, False)])
    pipeline([RowsItem(3, 1, (1, 9), "snapshot", rows[:1], False, False, incremental=True)])  # of no reset
    told, ended = pipeline([RowsItem(3, 1, (1, 9), "signal", rows[2:], False, True), end])
    assert isinstance(told, PipedRows)
    assert (told.rows.entries, told.headers) == ([Entry(b"b", b"3!", 5)], [(("seen", "r>->3"),)])
    assert isinstance(ended, ControlItem)
    assert ended.fields == {"id": "r", "count": 2, "digest": digest_of([(b"a", b"1!"), (b"b", b"3!")])}
    items: list[Item] = [begin, end]
    assert pipeline(items)[1].fields == {"id": "r", "count": 0, "digest": digest_of(())}  # type: ignore[union-attr]


@pytest.mark.parametrize("what", [name.replace("-", " ") for name in GARBAGE.split()])
@pytest.mark.parametrize("mode", ["fail", "skip"])
def test_garbage_is_a_failure_that_says_what_is_wrong(what: str, mode: str) -> None:
    config = of({"type": f"{MINE}.Garbage", "what": what}, event__processing__failure__handling__mode=mode)
    operations = [put(1, "a", "good"), put(2, "b", BOMB), put(3, "c", "good")]
    if mode == "skip":
        assert parts_of(config, *operations) == [
            TransformedOperation(operations[0]),
            Skipped(1, 2, 2),
            TransformedOperation(operations[2]),
        ]
        return
    with pytest.raises(TransformFailed) as raised:
        parts_of(config, *operations)
    told = str(raised.value)
    assert f"transform t0 ({MINE}.Garbage) failed on cache c, segment 3, position 1.2: " in told
    assert "event.processing.failure.handling.mode to skip, warn or dead-letter" in told
    assert ("which is neither a Record nor None" in told) is (what in ("number", "true", "tuple"))
    assert len(told) < 600
    assert BOMB not in told


def test_failures_are_logged_once_a_second(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    config = of({"type": f"{MINE}.Garbage", "what": "number"}, event__processing__failure__handling__mode="warn")
    pipeline = Pipeline.of(config, memory.port().clock, Counter())
    assert pipeline is not None
    for seconds in (0, 0, 1):
        memory.run(asyncio.sleep(seconds))
        pipeline([OperationsItem(3, 1, [put(1, "b", BOMB)])])
    assert [line.endswith("(1 more since the last such line)") for line in caplog.messages] == [False, True]


def test_a_predicate_answers_true_or_false() -> None:
    config = of({"type": f"{MINE}.Suffix", "predicate": "p"}, predicates={"p": {"type": f"{MINE}.Undecided"}})
    with pytest.raises(TransformFailed, match="answered a NoneType, which is neither True nor False"):
        parts_of(config, put(1, "a", "x"))


def test_a_connector_that_is_closed_ends_between_two_records() -> None:
    pipeline = Pipeline.of(of({"type": f"{MINE}.Suffix"}), time, Counter())
    assert pipeline is not None
    pipeline.closing.set()
    with pytest.raises(Closing):
        pipeline([OperationsItem(3, 1, [put(1, "a", "x")])])


def test_without_anything_to_do_there_is_no_pipeline() -> None:
    assert Pipeline.of(config_of(), time, Counter()) is None
    assert Pipeline.of(config_of(predicates=""), time, Counter()) is None


def test_what_a_transform_says_is_cut_and_can_be_written() -> None:
    config = of(
        {"type": f"{MINE}.Suffix"},
        event__processing__failure__handling__mode="dead-letter",
        errors__deadletterqueue__topic__name="letters",
    )
    pipeline = Pipeline.of(config, time, Counter())
    assert pipeline is not None

    def apply(record: Record) -> Record:
        raise ValueError("half \ud83d " + "x" * 5000)

    pipeline._steps[0].transform.apply = apply  # type: ignore[method-assign]
    (item,) = pipeline([OperationsItem(3, 1, [put(1, "a", "v")])])
    letter = item.parts[0]  # type: ignore[union-attr]
    assert isinstance(letter, DeadLetter)
    assert len(letter.error.encode()) < 1300
    assert "half \\ud83d xxx" in letter.error
    assert letter.error.endswith("x…")


@pytest.mark.parametrize("fits", [True, False])
def test_what_headers_add_counts(fits: bool) -> None:
    config = of({"type": f"{MINE}.Suffix"})
    # Key and value take 3 * 3 + 3 bytes, the names and the other value 10.
    room = EntryLimit.of(config).room - 22
    large = "ä" * (room // 2) + "x" * (room % 2 + (not fits))

    def apply(record: Record) -> Record:
        return record.with_header("large", large).with_header("bb", b"1").with_header("nn", None)

    pipeline = Pipeline.of(config, time, Counter())
    assert pipeline is not None
    pipeline._steps[0].transform.apply = apply  # type: ignore[method-assign]
    items: list[Item] = [OperationsItem(3, 1, [put(1, "a", "v")])]
    if fits:
        assert len(pipeline(items)[0].parts) == 1  # type: ignore[union-attr]
    else:
        with pytest.raises(TransformFailed, match=r"take up to \d+ bytes of a record"):
            pipeline(items)
