"""Canonical JSON: sorted keys, no blanks, UTF-8. The same object always gives the same bytes."""

from __future__ import annotations

import json
from typing import Any

from deelog_schemas.errors import RecordError


def dumps(value: Any) -> bytes:
    """Canonical bytes of a JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def loads(raw: bytes, what: str) -> dict[str, Any]:
    """The JSON object in `raw`; raises `RecordError` naming `what` where there is none."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RecordError(f"{what} is not a JSON object but {type(value).__name__}")
    return value
