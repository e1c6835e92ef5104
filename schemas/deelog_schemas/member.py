"""A member: one process of a node. It is written `<node.id>@<incarnation>` in records, frames and views."""

from __future__ import annotations

from typing import NamedTuple


class Member(NamedTuple):
    """A restarted process has the same `node_id` and a higher `incarnation`: its start in Unix milliseconds.

    One that starts by a clock that was set back has that of its predecessor, and one more.
    """

    node_id: str
    incarnation: int

    @classmethod
    def starting(cls, node_id: str, unix_ns: int, after: str = "") -> Member:
        """The process that starts at that time, and `after` that process of its node, whatever the clock says."""
        milliseconds = unix_ns // 1_000_000
        return cls(node_id, max(milliseconds, cls.parse(after).incarnation + 1) if after else milliseconds)

    @classmethod
    def parse(cls, text: str) -> Member:
        """The member in `text`; raises `ValueError`. A node id may contain an `@`."""
        node_id, _, incarnation = text.rpartition("@")
        return cls(node_id, int(incarnation))

    def __str__(self) -> str:
        return f"{self.node_id}@{self.incarnation}"


def node_id_of(member: str) -> str:
    """The node id of a member; empty where `member` is malformed, since a foreign record must not stop a reader."""
    return member.rpartition("@")[0]


def is_newer_process(other: str, member: str) -> bool:
    """Whether `other` is a process of `member`'s node that started after it."""
    if node_id_of(other) != node_id_of(member):
        return False
    try:
        return Member.parse(other).incarnation > Member.parse(member).incarnation
    except ValueError:  # a foreign record
        return False


def is_of_the_future(member: str, unix_ns: int) -> bool:
    """Whether it has started after this time: its clock was ahead, or this one was set back since."""
    return Member.parse(member).incarnation > unix_ns // 1_000_000
