from __future__ import annotations

import pytest

from deelog_schemas.member import Member, is_newer_process, is_of_the_future, node_id_of


@pytest.mark.parametrize(("text", "member"), [("n1@17", Member("n1", 17)), ("a@b@0", Member("a@b", 0))])
def test_a_member_is_read_as_it_is_written(text: str, member: Member) -> None:
    assert Member.parse(text) == member
    assert str(member) == text
    assert node_id_of(text) == member.node_id


@pytest.mark.parametrize("text", ["n1", "n1@", "n1@x"])
def test_a_text_without_an_incarnation_is_no_member(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        Member.parse(text)


def test_what_is_no_member_is_nobodys_process() -> None:
    assert node_id_of("damaged") == ""
    assert not is_newer_process("damaged", "n@9")
    assert not is_newer_process("n@x", "n@9")


@pytest.mark.parametrize(
    ("other", "member", "newer"),
    [("n@10", "n@9", True), ("n@9", "n@9", False), ("n@8", "n@9", False), ("m@10", "n@9", False)],
)
def test_a_newer_process_has_the_same_node_id_and_started_later(other: str, member: str, newer: bool) -> None:
    assert is_newer_process(other, member) is newer


@pytest.mark.parametrize(("after", "incarnation"), [("", 7), ("n@6", 7), ("n@7", 8), ("n@3600000", 3_600_001)])
def test_a_process_that_starts_is_newer_than_those_before_whatever_its_clock_says(after: str, incarnation: int) -> None:
    assert Member.starting("n", 7_999_999, after) == Member("n", incarnation)


def test_a_process_of_the_future_has_started_after_now() -> None:
    assert [is_of_the_future(f"n@{start}", 7_999_999) for start in (6, 7, 8)] == [False, False, True]
