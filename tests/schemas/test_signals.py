"""Signals as text: which are accepted, and which are refused with which message.

Bad input: no value, no JSON, JSON that is not an object, deep nesting, too many bytes, wrong types (true for a number,
a number for text), missing and misspelt fields, segments that are negative, repeated, too many or none, regular
expressions that are invalid, slow or too many, a very long id, signal types that only Debezium has.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deelog_schemas import signals
from deelog_schemas.errors import RecordError
from deelog_schemas.signals import Progress, UnknownSignal, decode_progress, decode_signal, encode_progress


def raw(kind: object, data: object = None, identity: object = "i") -> bytes:
    """A signal as text; fields that are None are left out."""
    whole = {"id": identity, "type": kind, "data": data}
    return json.dumps({name: value for name, value in whole.items() if value is not None}).encode()


def test_each_kind_as_debeziums_tools_send_it() -> None:
    found = decode_signal(raw("execute-snapshot", {"type": "INCREMENTAL", "data-collections": ["users", "a.*"]}))
    assert isinstance(found, signals.ExecuteSnapshot)
    assert (found.id, found.segments) == ("i", None)
    assert [found.concerns(name) for name in ("users", "abc", "xusers")] == [True, True, False]
    stop = decode_signal(raw("stop-snapshot", {"type": "incremental"}))
    assert stop == signals.StopSnapshot("i", None)
    assert stop.concerns("any")
    assert decode_signal(raw("pause-writing")) == signals.PauseWriting("i", None)
    resumed = decode_signal(raw("resume-writing", {"data-collections": ["c"]}))
    assert resumed == signals.ResumeWriting("i", (re.compile("c"),))
    assert decode_signal(raw("log", {"message": "at {}"}, None)) == signals.Log("", "at {}")
    reset = {"cache": "c", "segments": [3, 1, 3], "reason": "why"}
    assert decode_signal(raw("reset-segment", reset)) == signals.ResetSegment("i", "c", (1, 3), "why")
    assert decode_signal(raw("reset-segment", json.dumps(reset))) == signals.ResetSegment("i", "c", (1, 3), "why")


def test_what_just_fits() -> None:
    assert decode_signal(raw("log", {"message": "m"}, "i" * 255)).id == "i" * 255
    pause = decode_signal(raw("pause-writing", {"data-collections": ["c" * 200, *["c" * 38] * 99]}))
    assert pause.concerns("c" * 200)


BAD: dict[str, tuple[bytes | None, str]] = {
    "nothing": (None, "there is no value"),
    "no JSON": (b"{", "is not JSON"),
    "no object": (b"[]", "is not a JSON object but list"),
    "an unpaired surrogate": (b'{"id":"\\ud800","type":"log"}', "is not JSON"),
    "deep": (b'{"a":' * 5000 + b"1" + b"}" * 5000, "is not JSON"),
    "large": (b'"' + b"x" * signals.MAX_BYTES + b'"', "65536 are allowed"),
    "no type": (b'{"id":"i"}', "`type` is missing, and must be text"),
    "a type that is a number": (raw(3), "`type` is '3', and must be text"),
    "an id that is a number": (raw("log", {"message": "m"}, 5), "`id` is '5', and must be text"),
    "an id without end": (raw("log", {"message": "m"}, "i" * 300), "`id` has 300 characters, and 255 are allowed"),
    "data that is a list": (raw("log", [1]), "is not an object but list"),
    "data that is text and no JSON": (raw("log", "m"), "`data` of log is not JSON"),
    "no message": (raw("log"), "`message` is missing, and must be text"),
    "a long message": (raw("log", {"message": "m" * 5000}), "4096 are allowed"),
    "a field that is misspelt": (
        raw("execute-snapshot", {"data-collections": ["c"], "segment": [1]}),
        "`segment` is unknown; the fields are: data-collections, segments, type",
    ),
    "conditions": (
        raw("execute-snapshot", {"data-collections": ["c"], "additional-conditions": []}),
        "`additional-conditions` is unknown",
    ),
    "a blocking one": (raw("execute-snapshot", {"type": "blocking"}), "must be incremental"),
    "one without an id": (raw("execute-snapshot", {"data-collections": ["c"]}, None), "`id` is missing"),
    "no collections": (raw("execute-snapshot", {}), "`data-collections` is missing"),
    "an empty list of them": (raw("stop-snapshot", {"data-collections": []}), "has 0 entries, and 1 to 100 are"),
    "too long together": (
        raw("stop-snapshot", {"data-collections": ["c" * 41] * 100}),
        "has 4100 characters, and 4000",
    ),
    "too many": (raw("stop-snapshot", {"data-collections": ["c"] * 101}), "has 101 entries"),
    "one that is a number": (raw("pause-writing", {"data-collections": [1]}), "is no text of at most 200"),
    "a long one": (raw("pause-writing", {"data-collections": ["c" * 201]}), "is no text of at most 200"),
    "no regular expression": (raw("pause-writing", {"data-collections": ["["]}), "is no regular expression"),
    "one of Java's": (raw("pause-writing", {"data-collections": ["[a-z&&[^b]]"]}), "put a backslash before"),
    "one that never ends": (raw("pause-writing", {"data-collections": ["(a+)+$"]}), "may take long"),
    "one that takes long": (raw("pause-writing", {"data-collections": [".*.*.*.*x"]}), "may take long"),
    "many choices": (raw("pause-writing", {"data-collections": [".?" * 40 + "x"]}), "may take long"),
    "many empty groups": (raw("pause-writing", {"data-collections": ["(|)" * 20 + "x"]}), "may take long"),
    "a list that is deep": (b'{"id":' + b"[" * 1020 + b"]" * 1020 + b',"type":"log"}', "`id` is a list, and must be"),
    "a deep list in a list": (
        b'{"id":"i","type":"pause-writing","data":{"data-collections":[' + b"[" * 1010 + b"]" * 1010 + b"]}}",
        "has a list, which is no text",
    ),
    "a back reference": (raw("pause-writing", {"data-collections": [r"(a)\1"]}), "may take long"),
    "no segments": (raw("reset-segment", {"cache": "c"}), "`segments` is missing"),
    "an empty list of segments": (raw("reset-segment", {"cache": "c", "segments": []}), "has 0 entries"),
    "segments that are text": (raw("reset-segment", {"cache": "c", "segments": "1"}), "must be a list"),
    "a segment that is text": (raw("reset-segment", {"cache": "c", "segments": ["1"]}), "must be whole numbers"),
    "a segment that is true": (raw("reset-segment", {"cache": "c", "segments": [True]}), "must be whole numbers"),
    "a negative one": (raw("reset-segment", {"cache": "c", "segments": [-1]}), "must be whole numbers"),
    "one beyond all": (raw("reset-segment", {"cache": "c", "segments": [1 << 40]}), "must be whole numbers"),
    "no cache": (raw("reset-segment", {"segments": [1]}), "`cache` is missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_malformed_is_refused_with_what_is_wrong(name: str) -> None:
    value, words = BAD[name]
    with pytest.raises(RecordError, match=re.escape(words)) as caught:
        decode_signal(value)
    assert not isinstance(caught.value, UnknownSignal)
    assert len(str(caught.value)) < 500


def test_no_expression_that_is_taken_takes_long() -> None:
    """The dearest ones of those that are allowed, against a name as long as one can be."""
    for text in (".*.*.*.?.?#", "(a|.*).*.*#", "(|)(|)|#", ".+.*.*(b|#)"):
        signal = decode_signal(raw("pause-writing", {"data-collections": [text]}))
        assert isinstance(signal, signals._ForCollections)
        (expression,) = signal.collections or ()
        begun = time.process_time()
        assert not expression.fullmatch("a" * 249)
        assert time.process_time() - begun < 2.0


@pytest.mark.parametrize("kind", ["schema-changes", "pause-snapshot", "set-binlog-position", "EXECUTE-SNAPSHOT", ""])
def test_a_kind_that_is_not_known_is_told_from_what_is_malformed(kind: str) -> None:
    with pytest.raises(UnknownSignal, match="is none of execute-snapshot, log, pause-writing"):
        decode_signal(raw(kind, {"x": 1}))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
DATA = st.dictionaries(
    st.sampled_from(["type", "data-collections", "segments", "cache", "message", "reason", "x"]), VALUES
)


NAMES = st.text(max_size=8)
SEGMENTS = st.lists(st.integers(0, signals.MAX_SEGMENTS - 1), min_size=1, max_size=4)
GOOD = st.fixed_dictionaries(
    {},
    optional={
        "cache": NAMES,
        "segments": SEGMENTS,
        "reason": NAMES,
        "message": NAMES,
        "data-collections": st.lists(st.sampled_from(["users", "a.*", "[ab]", "x?"]), min_size=1, max_size=3),
        "type": st.sampled_from(["incremental", "INCREMENTAL"]),
    },
)


def again(signal: signals.Signal) -> bytes:
    """The signal as text."""
    data = {f.name: getattr(signal, f.name) for f in fields(signal) if f.name != "id"}
    if collections := data.pop("collections", None):
        data["data-collections"] = [one.pattern for one in collections]
    return raw(signal.kind, {name: value for name, value in data.items() if value is not None}, signal.id)


@given(kind=st.sampled_from(signals.KINDS) | st.text(max_size=9), data=GOOD | DATA | VALUES, identity=NAMES | VALUES)
def test_whatever_stands_there_is_a_signal_or_refused(kind: str, data: Any, identity: Any) -> None:
    try:
        signal = decode_signal(raw(kind, data, identity))
    except RecordError:
        return
    assert signal.id == (identity or "")
    assert decode_signal(again(signal)) == signal


@given(st.binary(max_size=200))
def test_whatever_bytes_stand_there_are_refused(value: bytes) -> None:
    with pytest.raises(RecordError):
        decode_signal(value)
    with pytest.raises(RecordError):
        decode_progress(value)


def test_progress_comes_back_as_it_was() -> None:
    progress = Progress("i", "c", (1, 5), 7, "n1@1", False)
    assert decode_progress(encode_progress(progress)) == progress
    with pytest.raises(RecordError, match="`refused` is missing"):
        decode_progress(json.dumps({k: v for k, v in progress._asdict().items() if k != "refused"}).encode())
