"""Canonical JSON: sorted keys, no blanks, UTF-8. The same object always gives the same bytes."""

from __future__ import annotations

import json
from typing import Any

import orjson

from deelog_schemas.errors import RecordError


def dumps(value: Any) -> bytes:
    """Canonical bytes of a JSON value; raises `ValueError` for what JSON cannot hold (NaN, an unpaired surrogate)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def loads(raw: bytes, what: str) -> dict[str, Any]:
    """The JSON object in `raw`; raises `RecordError` naming `what` where there is none.

    `orjson` is strict. The standard library also accepts UTF-16, NaN and unpaired surrogates, and text with
    unpaired surrogates cannot be encoded again.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RecordError(f"{what} is not a JSON object but {type(value).__name__}")
    return value
