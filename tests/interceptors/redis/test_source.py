"""The source of a position, there and back. Bad input: no JSON, fields that lack or are of another type."""

from __future__ import annotations

import json

import pytest

from deelog_interceptors.redis.source import Anchor, Source, decode_source, encode_source
from deelog_schemas.errors import RecordError

SMALL = Source("one", Anchor(10, 1), Anchor(20, 3), 15, 2)
LARGE = SMALL._replace(later={b"\xff": 0, b"k": 17}, past=((1, 2), (4, 3)), rank=9)


@pytest.mark.parametrize("source", [SMALL, LARGE])
def test_there_and_back(source: Source) -> None:
    assert decode_source(encode_source(source)) == source


def test_what_is_empty_is_not_there() -> None:
    assert encode_source(SMALL) == '{"from":[10,1],"id":"one","low":[15,2],"to":[20,3]}'
    assert set(json.loads(encode_source(LARGE))) == {"from", "id", "low", "to", "later", "past", "rank"}


@pytest.mark.parametrize(
    "change",
    [
        *({"id": 1}, {"id": None}, {"from": [1]}, {"from": [1, "2"]}, {"to": None}, {"to": [1, 2, 3]}, {"low": 7}),
        *({"low": [1, True]}, {"later": ["k"]}, {"later": {"?": 0}}, {"later": {"aw==": "0"}}, {"past": [1]}),
        *({"past": [[1, "2"]]}, {"past": 7}),
    ],
)
def test_no_source(change: dict[str, object]) -> None:
    text = json.dumps({**json.loads(encode_source(LARGE)), **change})
    with pytest.raises(RecordError, match="source of a position"):
        decode_source(text)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"id":"one","from":[1,1],"to":[1,1]}'])
def test_no_json(text: str) -> None:
    with pytest.raises(RecordError, match="source of a position"):
        decode_source(text)
