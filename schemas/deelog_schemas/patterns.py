"""Regular expressions from a configuration or a signal: compiled, or refused with an error that says why.

Kafka Connect and Debezium use Java's expressions, where a class inside a class (`[a[bc]]`) is a union and `&&` is an
intersection; other engines have `[[:alpha:]]`. Python reads all of these literally and at most warns, so a filter
would silently match other caches. They are refused. Weighed in docs/decisions.md, "Expressions that mean something
else in Java".
"""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(r"\\.|\[\^?(\]?(?:\\.|[^\]\\])*)\\?(?:\]|\Z)", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)
_ELSEWHERE: Final = re.compile(r"\[|--|&&|~~|\|\|")
"""Python reserves the last four for a future meaning, and warns about them."""


class PatternError(ValueError):
    """The text is not a regular expression. The message says why, and does not quote the text."""


def compiled(text: str) -> re.Pattern[str]:
    """`text` compiled by Python's `re`. Raises `PatternError`."""
    for token in _TOKEN.finditer(text):
        if token[1] and (sign := _ELSEWHERE.search(_ESCAPED.sub(" ", token[1]))):
            raise PatternError(
                f"`{sign[0]}` within [ ] at position {token.start()} has a meaning in other engines' expressions that "
                "Python's do not have: put a backslash before each of its characters where they are meant literally"
            )
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(str(error)) from None
