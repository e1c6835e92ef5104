"""Lineages of servers that are promoted, follow, and are restarted, against the streams themselves."""

from __future__ import annotations

import random

import pytest

from deelog_interceptors.redis.lineage import Lineage, read, told, written

NONE = "0" * 40


class Server:
    """A server with its stream: its bytes, and what it tells of itself. One byte is told apart from all others."""

    def __init__(self, name: int) -> None:
        self.log: list[int] = []
        self.id = self.own = f"id{name}"
        self.before, self.fork = NONE, -1

    def info(self) -> dict[str, str]:
        return {"master_replid": self.id, "master_replid2": self.before, "second_repl_offset": str(self.fork)}


def common(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("seed", range(60))
def test_what_two_lineages_share_is_one_stream(seed: int) -> None:
    """Each server has a connector, which looks at it after every turn or seldom, and some that start late."""
    chance, fresh = random.Random(seed), iter(range(10**6))
    servers = [Server(next(fresh)) for _ in range(3)]
    primary = servers[0]
    for one in servers[1:]:
        one.id = primary.id
    views: list[tuple[Server, Lineage]] = [(one, told(one.info())) for one in servers]
    seen = 0
    for _ in range(80):
        match chance.choice(["write", "write", "apply", "apply", "promote", "follow", "restart"]):
            case "write":
                for one in servers:
                    if one.id == one.own and (one is primary or chance.random() < 0.3):  # an old one lives on
                        one.log.append(next(fresh))
            case "apply":
                for one in servers:
                    if one.id == primary.id and common(one.log, primary.log) == len(one.log):
                        one.log += primary.log[len(one.log) : len(one.log) + chance.randrange(3)]
            case "promote":
                one = chance.choice(servers)
                if one is not primary and one.id == primary.id:
                    one.before, one.fork = one.id, len(one.log) + 1
                    one.id = one.own = f"id{next(fresh)}"
                    primary = one
            case "follow":
                one = chance.choice(servers)
                if one is not primary and one.id != primary.id:
                    whole = told(one.info()).shared(told(primary.info())) < len(one.log)
                    one.log = list(primary.log) if whole else one.log
                    one.id, one.before, one.fork = primary.id, primary.before, primary.fork
            case "restart":
                one = chance.choice(servers)
                if chance.random() < 0.2 and one is not primary:
                    one.id = one.own = f"id{next(fresh)}"
                    one.before, one.fork, one.log = NONE, -1, []
        for number, (server, view) in enumerate(views):
            if chance.random() < 0.8:
                views[number] = server, told(server.info()).after(view)
        if chance.random() < 0.1:
            server = chance.choice(servers)
            views.append((server, told(server.info())))
        current = [(s, told(s.info()).after(v)) for s, v in views]
        for server, lineage in current:
            assert read(written(lineage)) == lineage
            assert lineage.id == server.id
            for other, theirs in current:
                shared = lineage.shared(theirs)
                assert shared == theirs.shared(lineage)
                within = min(shared, len(server.log), len(other.log))
                assert within <= common(server.log, other.log)
                seen += 0 < within < max(len(server.log), len(other.log))
    assert seen, "no two of them forked"


def test_up_to_where() -> None:
    one = Lineage((("a", 0), ("b", 10), ("c", 30)))
    assert one.shared(Lineage((("a", 0), ("b", 10), ("d", 20)))) == 20
    assert one.shared(Lineage((("a", 0), ("e", 7)))) == 7
    assert one.shared(Lineage((("b", 0), ("c", 30)))) == 1 << 63
    assert one.shared(Lineage((("x", 0),))) == -1
    behind = Lineage((("a", 0), ("b", 10), ("d", 4)))
    assert one.shared(behind) == behind.shared(one) == 4, "promoted before it had got to where `b` began"


def test_what_was_known_before_stays_known() -> None:
    earlier = Lineage((("a", 0), ("b", 10)))
    assert Lineage((("b", 0), ("c", 30))).after(earlier) == Lineage((("a", 0), ("b", 10), ("c", 30)))
    assert Lineage((("b", 0),)).after(earlier) == earlier
    assert Lineage((("a", 0), ("c", 5))).after(earlier) == Lineage((("a", 0), ("c", 5)))
    assert Lineage((("x", 0), ("y", 5))).after(earlier) == Lineage((("x", 0), ("y", 5)))


def test_it_is_bounded() -> None:
    lineage = Lineage((("0", 0),))
    for number in range(1, 1000):
        lineage = Lineage(((str(number - 1), 0), (str(number), number))).after(lineage)
    assert len(lineage.ids) == 64
    assert lineage.ids[-1] == ("999", 999)


@pytest.mark.parametrize("fork", [-1, 0])
def test_a_server_that_was_never_promoted_has_one_id(fork: int) -> None:
    info = {"master_replid": "a", "master_replid2": NONE, "second_repl_offset": str(fork)}
    assert told(info) == Lineage((("a", 0),))


def test_what_is_read_from_info() -> None:
    info = {"master_replid": "b", "master_replid2": "a", "second_repl_offset": "101"}
    assert told(info) == Lineage((("a", 0), ("b", 100)))


@pytest.mark.parametrize("bad", [[], [["a"]], [["a", "b"]], [[1, 2]], [["a", 0, 1]]])
def test_what_is_no_lineage(bad: list[list[str | int]]) -> None:
    with pytest.raises(ValueError, match=r"no lineage|unpack"):
        read(bad)
