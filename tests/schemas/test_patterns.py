"""Which expressions are compiled and which refused: invalid ones, nested classes, intersections, POSIX classes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deelog_schemas.patterns import PatternError, compiled


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("a[b-d]", "ac", "a["),
        (r"[\[\]&\-]*", "[]&-", "a"),
        (r"\[[a-z]]", "[b]", "b"),
        (r"[]a]", "]", "[]"),
        (r"[^]a]", "b", "]"),
        (r"\\[a&b|~-]", "\\-", "\\\\"),
        (r"a&&b--c~~d\|\|", "a&&b--c~~d||", "a"),
    ],
)
def test_what_python_knows(text: str, yes: str, no: str) -> None:
    assert compiled(text).fullmatch(yes)
    assert not compiled(text).fullmatch(no)


@pytest.mark.parametrize(
    ("text", "of_it"),
    [
        ("x[a[bc]]", r"`\[` within \[ \] at position 1 "),
        ("[a-z&&[^b]]", "`&&` within"),
        ("[[:alpha:]]+", r"`\[` within"),
        ("[^]a||b]", r"`\|\|` within"),
        (r"[\\--a]", "`--` within"),
        ("[a~~b]", "put a backslash before each"),
        ("a,(", "unterminated subpattern"),
        ("[a", "unterminated character set"),
        ("a{99999999999}", "too large"),
        ("(" * 10_000, "recursion|unterminated|too many"),
    ],
)
def test_what_it_refuses(text: str, of_it: str) -> None:
    with pytest.raises(PatternError, match=of_it):
        compiled(text)


@given(st.text("[]^\\-&|~ab(.", max_size=12))
@settings(max_examples=500)
def test_what_it_takes_python_takes_without_a_warning(text: str) -> None:
    """Warnings are errors in these tests."""
    try:
        assert compiled(text).pattern == text
    except PatternError:
        if "[" not in text:
            with pytest.raises(re.error):
                re.compile(text)
