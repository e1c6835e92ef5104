"""What a node makes of the records of the topology topic: members, the controller, views, and what ends it.

Bad input: a foreign key, no JSON, a missing field, another number of segments, a newer process with the same node id.
"""

from __future__ import annotations

import orjson
import pytest

from deelog_connector.errors import NodeSuperseded
from deelog_interceptors.grid.topology.registry import Registry
from deelog_interceptors.grid.topology.topic import TopologyRecord
from deelog_interceptors.grid.topology.view import Registration, SegmentState, View, encode_view
from deelog_schemas.errors import ConfigError, RecordError

ME, OTHER = Registration("a@5", "a:1", "a:2"), Registration("b@3", "b:1", "b:2")


class Read:
    """A registry of two segments and what it called."""

    def __init__(self, own: str | None = "a@5") -> None:
        self.views: list[int] = []
        self.changes = 0
        self.of = Registry("t", 2, lambda view: self.views.append(view.topology_id), self._changed)
        self.of.own, self.of.token = own, "mine"

    def _changed(self) -> None:
        self.changes += 1

    def __call__(self, key: str, value: bytes | None) -> Registry:
        self.of.read([TopologyRecord(7, key, value)])
        return self.of

    def member(self, member: str, token: str = "mine", count: int = 2) -> Registry:
        body = {"member": member, "client": "h:1", "peer": "h:2", "token": token, "segment_count": count}
        return self(f"member/{member.rpartition('@')[0]}", orjson.dumps(body))

    def view(self, number: int, segments: int = 2, controller: str = "b@3") -> Registry:
        members = {one.member: one for one in (ME, OTHER)}
        return self("view", encode_view(View(number, controller, members, (SegmentState(),) * segments)))


def test_its_own_registration_comes_back() -> None:
    read = Read()
    key, value = read.of.registration(ME)
    event = read.of.expect("mine")
    assert read.of.expect("mine") is event
    assert (key, read(key, value).members, event.is_set(), read.changes) == ("member/a", {"a": ME}, True, 1)
    assert read.of.expect("mine") is not event
    assert read(key, None).members == {"a": ME}
    assert read.of.overwritten is False


def test_after_a_loss_a_registration_brings_the_last_view_that_its_member_knows() -> None:
    knows, lacks, later = Read(), Read(), Read()
    assert b"view" not in knows.of.registration(ME)[1]
    knows.view(5, controller="c@1")
    lacks.view(3)
    later.view(6)
    assert b"view" not in knows.of.registration(ME)[1]
    knows.of.lost()
    assert (knows.of.view_stands, knows.of.must_register) == (False, True)
    record = knows.of.registration(ME)
    assert knows.of.must_register is False
    for read in (lacks, later, knows):
        read(*record)
    assert (lacks.of.view, lacks.views, lacks.of.controller) == (knows.of.view, [3, 5], "c@1")
    assert (later.of.view.topology_id, later.views, later.of.controller) == (6, [6], "b@3")
    assert knows.views == [5]
    empty = Read("b@3")
    assert empty(*record).members == {"a": ME}
    assert empty.of.view == knows.of.view


def test_who_knows_a_view_of_a_registration_alone_registers_with_it_until_the_topic_has_it() -> None:
    teller, heard = Read("b@3"), Read()
    teller.view(5)
    teller.of.lost()
    heard(*heard.of.registration(ME))
    heard(*teller.of.registration(OTHER))
    assert (heard.of.view.topology_id, heard.of.view_stands, heard.of.must_register) == (5, False, True)
    for _ in range(2):  # the second time, too: it would write over the first one
        assert b'"view"' in heard.of.registration(ME)[1]
        assert heard.of.must_register is False
    assert heard.view(4).must_register is False
    assert b'"view"' in heard.of.registration(ME)[1]  # an older one is no help
    heard.view(5)
    assert b'"view"' not in heard.of.registration(ME)[1]
    late = Read()
    late(*teller.of.registration(OTHER))
    assert late.of.must_register is True
    assert late.view(5).must_register is False


def test_of_a_node_the_newest_process_counts() -> None:
    read = Read()
    for incarnation, newest in ((3, 3), (4, 4), (2, 4)):
        found = read.member(f"b@{incarnation}", "theirs").members["b"]
        assert found.member == f"b@{newest}"


def test_a_newer_process_of_its_id_ends_it_and_an_older_one_is_written_over() -> None:
    assert Read(own=None).member("a@6", "theirs").overwritten is False
    read = Read()
    assert read.member("a@4", "theirs").must_register is True
    read.of.registration(ME)
    assert read.of.must_register is False
    assert read.member("a@4", "theirs").overwritten is True
    for newer in ("a@6", "a@5"):  # of one name the first in the log keeps it
        with pytest.raises(NodeSuperseded, match=f"{newer} at h:1 has the node.id of"):
            read.member(newer, "theirs")
    assert read.member("a@5").overwritten is False  # the other one came first
    assert read.member("a@5", "theirs").overwritten is True
    with pytest.raises(NodeSuperseded):
        read.member("a@6", "theirs")


def test_the_first_registration_sets_the_number_of_segments_until_there_is_a_view() -> None:
    read = Read()
    read.member("b@3", "theirs", count=3)
    with pytest.raises(ConfigError, match=r"segment\.count = 2: the cluster has 3"):
        read.member("a@5")
    read.view(1)
    read.member("a@5")
    with pytest.raises(ConfigError, match="the cluster has 4"):
        read.view(2, segments=4)


def test_the_controller_is_that_of_the_last_record_or_view() -> None:
    read = Read()
    nonce = read.of.expect("n")
    assert read("controller", b'{"member":"a@5","nonce":"n"}').controller == "a@5"
    assert nonce.is_set()
    assert read.view(2).controller == "b@3"
    assert read.view(2, controller="a@5").view.controller == read.view(1, controller="a@5").controller == "b@3"
    assert read.views == [2]


def test_peers_are_the_views_and_a_controller_that_is_not_in_it() -> None:
    read = Read()
    read.view(1)
    read.member("c@1", "theirs")
    read.member("d@1", "theirs")
    assert read.of.peer_addresses() == {"b@3": "b:2"}
    assert read("controller", b'{"member":"c@1","nonce":"n"}').peer_addresses() == {"b@3": "b:2", "c@1": "h:2"}


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("else", b"{}", "key 'else' is not one of a topology topic"),
        ("view", b"[]", "."),
        ("controller", b"{", "not of this version: JSONDecodeError"),
        ("controller", b'{"member":"a@5"}', r"not of this version: KeyError\('nonce'\)"),
        ("member/a", b'{"member":"a","client":"","peer":""}', "not of this version: ValueError"),
    ],
)
def test_what_is_none_of_this_version_is_named_with_its_place(key: str, value: bytes, problem: str) -> None:
    read = Read()
    with pytest.raises(RecordError, match=rf"^t\[0\]@7: {problem}"):
        read(key, value)
    assert read.changes == 0
