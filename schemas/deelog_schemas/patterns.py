"""Regular expressions that somebody wrote into a file or a signal: compiled, or refused with words for them.

Kafka Connect's and Debezium's are Java's, where a class in a class (`[a[bc]]`) is a union and `&&` in one an
intersection; `[[:alpha:]]` is of other engines again. Python takes all of it literally and at most warns. A filter
that silently takes other caches is what we refuse instead. Weighed in docs/decisions.md, "Expressions that mean
something else in Java".
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["PatternError", "compiled"]

_TOKEN: Final = re.compile(r"\\.|\[\^?(\]?(?:\\.|[^\]\\])*)\\?(?:\]|\Z)", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)
_ELSEWHERE: Final = re.compile(r"\[|--|&&|~~|\|\|")
"""Python keeps the last four for a meaning to come, and warns of them."""


class PatternError(ValueError):
    """The expression is none; the message says why, and does not quote it."""


def compiled(text: str) -> re.Pattern[str]:
    """`text` as Python's `re` knows it. Raises `PatternError`."""
    for token in _TOKEN.finditer(text):
        if token[1] and (found := _ELSEWHERE.search(_ESCAPED.sub(" ", token[1]))):
            raise PatternError(
                f"`{found[0]}` within [ ] at position {token.start()} has a meaning in other engines' expressions that "
                "Python's do not have: put a backslash before each of its characters where they are meant literally"
            )
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(str(error)) from None
