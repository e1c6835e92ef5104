"""The names on a Kafka cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deelog_schemas.errors import ConfigError
from deelog_schemas.kafka.names import (
    RESERVED_SUFFIXES,
    Topics,
    abort_key,
    topic_problem,
)

names = st.text("abAB09._-", min_size=1, max_size=12)
delimiters = st.text("._-", min_size=1, max_size=2)


def test_every_name_of_a_cache() -> None:
    topics = Topics("shop", "sessions")
    assert (topics.changes, topics.positions) == ("shop.sessions", "shop.sessions.positions")
    assert (topics.topology, topics.diff) == ("shop.sessions.topology", "shop.sessions.diff")
    assert topics.signal == "shop-signal"
    assert (topics.controller_group, topics.diff_group) == ("shop.sessions.controller", "shop.sessions.diff")
    assert topics.transactional_id_node("n1") == "shop.sessions/node/n1"
    assert topics.transactional_id_controller == "shop.sessions/controller"
    assert [topics.transactional_id_diff(n) for n in (0, 3)] == ["shop.sessions/diff/0", "shop.sessions/diff/3"]
    assert topics.reader_group == "shop.sessions.controller.reader"
    assert topics.heartbeat == "__debezium-heartbeat.shop"


def test_who_writes_one_topic_has_one_set_of_ids() -> None:
    """Then whoever takes over fences the other, though its prefix and cache are spelled otherwise."""
    one, other = Topics("p", "a.b"), Topics("p.a", "b")
    assert one.changes == other.changes
    assert one.transactional_id_node("n1") == other.transactional_id_node("n1")
    assert one.transactional_id_controller == other.transactional_id_controller
    assert one.transactional_id_diff(0) == other.transactional_id_diff(0)
    assert (one.controller_group, one.diff_group) == (other.controller_group, other.diff_group)


def test_the_delimiter_governs_all_suffixes() -> None:
    topics = Topics("shop", "sessions", "__")
    assert topics.positions == "shop__sessions__positions"
    assert topics.diff == "shop__sessions__diff"


@pytest.mark.parametrize(
    ("prefix", "cache", "delimiter", "fields"),
    [
        ("p", "", ".", {"cache.name"}),
        ("", "c", ".", {"topic.prefix"}),
        ("p q", "c", ".", {"topic.prefix"}),
        ("p", "c/d", ".", {"cache.name"}),
        ("p", "é", ".", {"cache.name"}),
        ("p", "c\n", ".", {"cache.name"}),
        ("p", "c", "", {"topic.delimiter"}),
        ("p", "c", "/", {"topic.delimiter"}),
        ("p", "positions", ".", {"cache.name"}),
        ("p", "a.positions", ".", {"cache.name"}),
        ("p", "mytopology", ".", {"cache.name"}),
        ("p", "a-diff", "-", {"cache.name"}),
        ("p", "x-signal", ".", {"cache.name"}),
        ("p", "signal", "-", {"signal.kafka.topic"}),
        ("p" * 125, "c" * 114, ".", {"cache.name"}),
        ("p" * 125, "c" * 125, ".", {"cache.name", "diff.topic"}),
        ("p" * 245, "c", ".", {"cache.name", "diff.topic", "signal.kafka.topic", "topic.prefix"}),
    ],
)
def test_names_that_cannot_be(prefix: str, cache: str, delimiter: str, fields: set[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Topics(prefix, cache, delimiter)
    assert {error.field for error in caught.value.errors} == fields


@pytest.mark.parametrize("length", [80, 81])
def test_an_error_shows_80_characters_of_a_name(length: int) -> None:
    name = "p" * (length - 1) + "/"
    for names, field in (((name, "c"), "topic.prefix"), (("p", name), "cache.name")):
        with pytest.raises(ConfigError) as caught:
            Topics(*names)
        (error,) = caught.value.errors
        assert (error.field, error.value) == (field, repr(name[:80]))
    with pytest.raises(ConfigError) as caught:
        Topics("p", "c", diff_topic=name)
    (error,) = caught.value.errors
    assert error.problem.startswith(f"gives the topic {name if length == 80 else name[:80] + '…'!r}, which must be")


def test_the_longest_name_that_can_be() -> None:
    assert len(Topics("p" * 125, "c" * 113).positions) == 249


@pytest.mark.parametrize("other", ["shop.sessions", "shop.sessions.positions", "shop.sessions.topology"])
def test_a_topic_named_by_hand_must_be_another(other: str) -> None:
    with pytest.raises(ConfigError, match=r"diff\.topic.*another topic"):
        Topics("shop", "sessions", diff_topic=other)
    with pytest.raises(ConfigError, match=r"signal\.kafka\.topic.*another topic"):
        Topics("shop", "sessions", signal_topic=other)
    with pytest.raises(ConfigError, match=r"signal\.kafka\.topic"):
        Topics("shop", "sessions", diff_topic="x", signal_topic="x")
    with pytest.raises(ConfigError, match=r"diff\.topic.*neither"):
        Topics("shop", "sessions", diff_topic="..")


def test_without_a_signal_topic_none_is_in_the_way() -> None:
    assert Topics("shop", "sessions", signal_topic="").signal == ""


def _all(topics: Topics) -> set[str]:
    return {topics.changes, topics.positions, topics.topology, topics.diff}


@given(names, names, names, delimiters)
def test_no_two_caches_share_a_topic(prefix: str, one: str, other: str, delimiter: str) -> None:
    try:
        first, second = Topics(prefix, one, delimiter), Topics(prefix, other, delimiter)
    except ConfigError:
        return
    assert all(topic_problem(name) is None for name in _all(first))
    assert one == other or not _all(first) & _all(second)


@given(names, delimiters, st.sampled_from(RESERVED_SUFFIXES))
def test_a_cache_that_another_ones_topic_would_fall_onto_is_refused(cache: str, delimiter: str, suffix: str) -> None:
    with pytest.raises(ConfigError):
        Topics("p", f"{cache}{delimiter}{suffix}", delimiter)


@pytest.mark.parametrize("node_id", ["", "a.b", "a/b", "x" * 65, "n1\n"])
def test_a_node_id_that_cannot_be(node_id: str) -> None:
    with pytest.raises(ConfigError, match=r"node\.id"):
        Topics("p", "c").transactional_id_node(node_id)


def test_a_partition_is_not_negative() -> None:
    with pytest.raises(ValueError, match="-1"):
        Topics("p", "c").transactional_id_diff(-1)


@pytest.mark.parametrize("node_id", ["n1", "spare"])
def test_a_record_that_is_only_aborted_names_the_node_of_its_producer(node_id: str) -> None:
    topics = Topics("p", "c")
    for name in (topics.transactional_id_node(node_id), topics.transactional_id_spare(node_id)):
        assert topics.aborts(abort_key(name)) == node_id
        assert Topics("p", "d").aborts(abort_key(name)) is None
    assert topics.aborts(abort_key(topics.transactional_id_diff(0))) is None
    assert topics.aborts(b"k") is None
    assert topics.aborts(None) is None
