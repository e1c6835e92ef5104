"""The oracle: it must find what is lost, what nobody wrote, and accept what a reset or a later write covers."""

from __future__ import annotations

import time

import pytest

from deelog_proof.load.history import DELETE, Audit, Captured, History, Sent, audit, content_of, merged

A, B, C = content_of(b"a"), content_of(b"b"), content_of(b"c")


def _history(*contents: int) -> History:
    """Writes of key `k`, sent at 100, 200, …, acknowledged 10 later."""
    return History({b"k": [Sent(c, 100 * (n + 1), 100 * (n + 1) + 10) for n, c in enumerate(contents)]})


def _captured(*records: tuple[int, int] | tuple[int, int, str]) -> dict[bytes, list[Captured]]:
    return {b"k": [Captured(r[0], r[1], r[2] if len(r) == 3 else "put") for r in records]}


def test_a_delete_is_an_expiry_where_the_cache_does_not_tell() -> None:
    records = {b"k": _captured((A, 105), (DELETE, 205, "remove"))[b"k"]}
    assert audit(_history(A), records, {}).phantoms == [(b"k", 1)]
    quiet = audit(_history(A), records, {}, names_expiry=False)
    assert (quiet.phantoms, quiet.lost, quiet.in_topic) == ([], [], 1)
    foreign = {b"k": _captured((A, 105), (B, 205))[b"k"]}
    assert audit(_history(A), foreign, {}, names_expiry=False).phantoms == [(b"k", 1)]


def _audit(history: History, records: dict[bytes, list[Captured]], *reset_ends: int) -> Audit:
    return audit(history, records, {b"k": list(reset_ends)} if reset_ends else {})


def test_a_content_is_told_from_others_and_from_a_delete() -> None:
    assert content_of(None) == DELETE == 0
    assert A == content_of(b"a") != B
    assert DELETE not in (A, B, content_of(b""))


def test_a_write_is_noted_when_it_is_sent() -> None:
    history, begin = History(), time.time_ns() // 1000
    first, second = history.sent(b"k", b"a"), history.sent(b"k", None)
    assert history.writes == {b"k": [first, second]}
    assert (first.content, second.content, first.acked_us, first.captured) == (A, DELETE, 0, True)
    assert begin <= first.sent_us <= second.sent_us <= time.time_ns() // 1000


def test_a_record_may_be_of_the_moment_of_its_sending() -> None:
    assert _audit(_history(A), _captured((A, 100))).lost == []
    assert _audit(_history(A), _captured((A, 99))).phantoms == [(b"k", 0)]


def test_a_reset_that_ends_when_a_write_is_sent_covers_it() -> None:
    assert _audit(_history(A), {}, 100).covered_by_reset == 1
    assert _audit(_history(A), {}, 99).lost == [(b"k", 0)]


def test_all_there() -> None:
    result = _audit(_history(A, DELETE, B), _captured((A, 105), (DELETE, 205, "remove"), (B, 305)))
    assert (result.acked, result.in_topic, result.lost, result.phantoms) == (3, 3, [], [])


@pytest.mark.parametrize(
    "records", [[(A, 105), (DELETE, 205, "remove")], [(A, 105)], []], ids=["the last", "the last two", "all"]
)
def test_a_lost_last_write_is_found(records: list[tuple[int, int]]) -> None:
    result = _audit(_history(A, DELETE, B), _captured(*records))
    assert result.lost == [(b"k", n) for n in range(len(records), 3)]


def test_a_lost_delete_is_found() -> None:
    result = _audit(_history(A, DELETE), _captured((A, 105)))
    assert result.lost == [(b"k", 1)]


def test_an_expiry_is_not_the_delete_of_a_client() -> None:
    result = _audit(_history(A, DELETE), _captured((A, 105), (DELETE, 205, "expire")))
    assert result.lost == [(b"k", 1)]


def test_a_delete_of_nothing_needs_no_record() -> None:
    history = _history(A, DELETE)
    history.writes[b"k"][1].captured = False
    assert _audit(history, _captured((A, 105))).lost == []


def test_a_later_write_covers() -> None:
    result = _audit(_history(A, B, C), _captured((A, 105), (C, 305)))
    assert (result.lost, result.covered_by_write) == ([], 1)


def test_a_reset_covers_what_was_sent_before_its_end_and_nothing_else() -> None:
    result = _audit(_history(A, B, C), {}, 250)
    assert (result.covered_by_reset, result.lost) == (2, [(b"k", 2)])


def test_equal_values_are_told_apart_by_time() -> None:
    """a, b, a: the record of the last one does not stand for the first, nor the other way round."""
    assert _audit(_history(A, B, A), _captured((A, 305)), 250).lost == []
    assert _audit(_history(A, B, A), _captured((A, 105), (B, 205))).lost == [(b"k", 2)]


def test_an_attempt_that_was_sent_again_may_stand_there_twice() -> None:
    result = _audit(_history(A, B), _captured((A, 103), (A, 108), (B, 205)))
    assert (result.lost, result.phantoms, result.in_topic) == ([], [], 2)


@pytest.mark.parametrize("record", [(C, 205), (B, 150), (DELETE, 205, "remove"), (C, 205, "correct")])
def test_what_no_client_wrote_is_found(record: tuple[int, int]) -> None:
    result = _audit(_history(A, B), _captured((A, 105), record, (B, 205)))
    assert result.phantoms == [(b"k", 1)]


def test_keys_that_only_the_topic_has() -> None:
    assert audit(History(), {b"x": [Captured(A, 1, "put")]}, {}).phantoms == [(b"x", 0)]


def test_a_correction_is_no_write_of_a_client() -> None:
    result = _audit(_history(A, B), _captured((A, 105), (A, 305, "correct"), (DELETE, 306, "correct")))
    assert (result.lost, result.phantoms) == ([(b"k", 1)], [])


def test_unacknowledged_writes_are_counted_and_owe_nothing() -> None:
    history = _history(A, B)
    history.writes[b"k"][1].acked_us = 0
    result = _audit(history, _captured((A, 105)))
    assert (result.unacked, result.lost) == (1, [])


def test_histories_of_workers_share_no_key() -> None:
    assert merged([_history(A), History({b"x": []})]).writes.keys() == {b"k", b"x"}
    with pytest.raises(ValueError, match="two workers"):
        merged([_history(A), _history(B)])
