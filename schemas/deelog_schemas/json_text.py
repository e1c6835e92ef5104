"""Text that is to be JSON is looked at where it is captured: what reads it later can refuse no write any more."""

from __future__ import annotations

from typing import Any, Final

import orjson

MOST_DEEP: Final = 500
"""Levels of arrays and objects within each other. Readers that recurse, as Python's `json` does, end near 1,000."""


def json_problem(text: bytes | str) -> str:
    """Why it is no JSON that every reader takes; empty where it is. Not with what is in it.

    A number is refused that a double cannot hold, as `1e400`, and a half of a surrogate pair.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return str(error)
    brackets = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    if sum(map(text.count, brackets)) > MOST_DEEP and _is_deep(value):  # type: ignore[arg-type]
        return f"more than {MOST_DEEP} levels deep"
    return ""


def _is_deep(value: Any) -> bool:
    level, depth = [value], 0
    while level := [part for part in level if isinstance(part, dict | list)]:
        depth += 1
        if depth > MOST_DEEP:
            return True
        level = [part for whole in level for part in (whole.values() if isinstance(whole, dict) else whole)]
    return False
