"""The state of the takeover model, immutable and hashable, and the helpers that make the next state.

Members are numbers (node + 10 * incarnation), values small integers with 0 for "absent", so that a state hashes fast.
`shipped.py` converts them to the arguments of the product's functions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from deelog_connector.core.history import History, end_of, last_of
from deelog_schemas.keys import partition_of
from tests.model.explore import Step

Op = tuple[int, int, int, int]
"""`(epoch, sequence, key, value)`."""
Claim = tuple[int, int]
Claims = tuple[Claim, ...]
"""`((epoch, member), ...)`, sorted."""

LEADS: Final = "cklfartuoz"
"""Roles of a node that considers itself primary: c reads claims next, k claims next, l looks, f fences, a goes ACTIVE
next, r reads and decides, t owes a reset, u writes one, o writes operations, z has released. Others: - none, b
backup."""
NO: Final[tuple[Any, ...]] = ()
FOREIGN: Final = 99
"""The status of a record in an open transaction of a node that is not modelled."""

BUDGETS: Final = (
    "OPS",  # client writes
    "CRASH",  # a process dies
    "JOIN",  # a dead node restarts, empty
    "PART",  # a primary is cut off from the nodes, not from Kafka, and keeps its view
    "GHOST",  # a client writes at a node that is cut off
    "TWIN",  # a newer process of a node that is cut off starts
    "OPEN",  # a transaction with operations stays open
    "FOREIGN",  # a transaction of a node that is not modelled stays open
    "XFENCE",  # a node is fenced for a segment elsewhere
    "COMPACT",  # compaction runs
    "HAND",  # a primary releases a segment
    "STOP",  # a process that has released its segments ends
    "MOVE",  # the controller moves a segment without a release
    "SWAP",  # two segments change owners
    "OVER",  # an op log overflows and is dropped
    "COALESCE",  # an op log coalesces
    "TRUNC",  # Kafka loses the end of a partition
    "READS",  # a client reads, which changes the next eviction
)


@dataclass(frozen=True)
class Config:
    """The bounds of one search. Names in capitals are those of the command line."""

    N: int = 2
    SEGS: int = 1
    PARTS: int = 1
    KEYS: int = 1
    ACKS: int = 2
    """2: all in-sync owners acknowledge, 1: only the primary does."""
    CHUNK: int = 0
    """Rows of a reset in one transaction; 0: all."""
    CAP: int = 0
    """The most entries of a segment before one is evicted; 0: any number."""
    COMPACTANY: int = 0
    """0: no compaction during a takeover; 1: only during that of a node cut off; 2: at any time."""
    COMPACTKEYS: int = 0
    """1: compaction also removes change records that a later record of their key replaces."""
    TRUNCANY: int = 0
    """0: Kafka loses no record that a process waits for; 1: it may lose any record."""
    FILTER: int = 0
    """A value that a filter drops, with a SKIPPED record in its place; 0: none."""
    budgets: tuple[int, ...] = (1,) + (0,) * (len(BUDGETS) - 1)
    removed: frozenset[str] = field(default_factory=frozenset)
    """The rules that are removed."""

    @classmethod
    def parse(cls, text: str) -> Config:
        """The configuration in `N=3 OPS=2 fencing=0`. ValueError names an unknown word."""
        sizes: dict[str, int] = {}
        budgets = {name: int(name == "OPS") for name in BUDGETS}
        removed = set()
        for word in text.split():
            name, _, value = word.partition("=")
            if name in budgets:
                budgets[name] = int(value)
            elif name.isupper() and name in cls.__dataclass_fields__:
                sizes[name] = int(value)
            elif value == "0" and not name.isupper():
                removed.add(name)
            else:
                raise ValueError(f"{word!r}: neither a bound ({', '.join(BUDGETS)}, ...) nor a rule=0")
        return cls(**sizes, budgets=tuple(budgets[b] for b in BUDGETS), removed=frozenset(removed))


class Rec(NamedTuple):
    """A record of the change topic. `status` is 0 if it is committed, else it says in which transaction it is."""

    status: int
    kind: str  # op, sk (skipped), claim, active, rel, rb (reset begin), rs (row), re (reset end), x (of another node)
    seg: int
    epoch: int  # of its position
    seq: int
    key: int
    val: Any  # value; in rb and re the reset's id; in re also the entries at its position
    by: int  # epoch of the claim it was written under
    who: int  # member


class Seg(NamedTuple):
    """One process's state of one segment."""

    role: str = "-"
    e: int = 0  # epoch of its view
    hist: History = ()
    log: tuple[Op, ...] = ()  # the op log
    start: int = 1  # complete from
    st: tuple[int, ...] = ()  # the cache
    lru: tuple[int, ...] = ()  # keys from the least to the most recently used, if entries are evicted
    w: int = 0  # written, as owner; -1 unknown
    off: int = -1  # offset of its own control record that it waits for
    known: tuple[Any, ...] = ()  # (claims, position, reset, release) when it read its own record on the positions topic
    frm: int = -1  # where its scan begins
    victims: Claims = ()
    rf: int = -1  # the read_from that it may announce
    base: int = -1
    cand: tuple[int, ...] = ()  # (offset, sequence): the next read_from, once every in-sync owner has it
    atomic: int = 0  # one transaction must hold everything up to here
    re: int = 0  # its ACTIVE follows a fence: look at the claims again
    owe: int = 0  # owes a reset in any case; 2: one without a cause
    snap: tuple[Any, ...] = ()  # (position, cache, begin offset, rows written) of its reset
    nf: int = 0  # fences done for this claim; counted only if fencing could repeat for ever


IDLE: Final = {
    "w": 0, "off": -1, "known": NO, "frm": -1, "victims": NO, "rf": -1, "base": -1, "cand": NO, "atomic": 0, "re": 0,
    "owe": 0, "snap": NO, "nf": 0, "lru": NO,
}  # fmt: skip
"""The initial fields of a process that is not primary, or becomes primary again."""


class Node(NamedTuple):
    """A process. `truncated` has a bit for each partition of which it has not checked the truncation yet."""

    member: int
    up: int
    stale: int  # cut off from the other nodes
    fenced: int  # its producer was fenced
    tx: int  # it has an open transaction
    truncated: int
    segs: tuple[Seg, ...]


class Truth(NamedTuple):
    """The controller's and the checker's state of one segment."""

    e: int
    p: int  # primary, -1 none
    isr: tuple[int, ...]
    nowait: tuple[int, ...] = ()  # in the set, but acknowledgements do not wait for them yet (in_sync_order removed)
    ack: tuple[tuple[int, int], ...] = ()  # ((epoch, highest acked sequence), ...)
    top: tuple[int, int] = (0, -1)  # highest epoch that went ACTIVE, and its offset
    excuse: int = 0  # from now on a reset is allowed
    lost: int = 0  # every in-sync owner died


class World(NamedTuple):
    """Everything. `pend` is the positions topic from the first open record on, `pos` the state below it, by segment."""

    nodes: tuple[Node, ...]
    logs: tuple[tuple[Rec | None, ...], ...]
    pend: tuple[tuple[Any, ...], ...]
    pos: tuple[tuple[Any, ...], ...]  # (claims, position, reset, release)
    truth: tuple[Truth, ...]
    left: tuple[int, ...]
    foreign: int  # 1 + the partition with an open transaction of a node that is not modelled


WorldStep = Step[World]


def node_id(member: int) -> int:
    """The node of a member."""
    return member % 10


def put(items: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    """The tuple with one element replaced."""
    return (*items[:index], value, *items[index + 1 :])


def without(items: tuple[Any, ...], item: Any) -> tuple[Any, ...]:
    """The tuple without an element."""
    return tuple(i for i in items if i != item)


def set_node(w: World, i: int, /, **changes: Any) -> World:
    """The world with fields of a process changed."""
    return w._replace(nodes=put(w.nodes, i, w.nodes[i]._replace(**changes)))


def set_truth(w: World, g: int, /, **changes: Any) -> World:
    """The world with fields of a segment's truth changed."""
    return w._replace(truth=put(w.truth, g, w.truth[g]._replace(**changes)))


def set_seg(w: World, i: int, g: int, /, **changes: Any) -> World:
    """The world with fields of a process's segment changed."""
    segs = w.nodes[i].segs
    return set_node(w, i, segs=put(segs, g, segs[g]._replace(**changes)))


_INDEX: Final = {name: i for i, name in enumerate(BUDGETS)}


def left(w: World, budget: str) -> int:
    """How often an event may still happen."""
    return w.left[_INDEX[budget]]


def use(w: World, budget: str) -> World:
    """The world after it has happened once more."""
    index = _INDEX[budget]
    return w._replace(left=put(w.left, index, w.left[index] - 1))


def by_itself(kind: str, words: str, w: World, bad: str | None = None) -> WorldStep:
    """A step that needs no outside cause."""
    return Step(kind, words, w, bad, True)


def from_outside(kind: str, words: str, w: World, bad: str | None = None) -> WorldStep:
    """A step of a client, a fault or the controller."""
    return Step(kind, words, w, bad, False)


def name_of(w: World, i: int) -> str:
    """A process in words."""
    n = w.nodes[i]
    return f"n{node_id(n.member)}" + "'" * (n.member // 10 - 1) + ("(cut off)" if n.stale else "")


def partition(config: Config, g: int) -> int:
    """The partition of a segment."""
    return partition_of(g, config.PARTS, config.SEGS)


def stable(log: tuple[Rec | None, ...]) -> int:
    """The last stable offset: readers see no record from the first one of an open transaction on."""
    for offset, record in enumerate(log):
        if record is not None and record.status:
            return offset
    return len(log)


def acked_in(w: World, g: int) -> str | None:
    """An acknowledged operation that is not in the present primary's history, in words."""
    t = w.truth[g]
    history = w.nodes[t.p].segs[g].hist
    lost = next(((e, q) for e, q in t.ack if end_of(history, e) < q and not t.lost), None)
    return f"V1 acked operation {lost} is in no history of the new primary" if lost else None


def replicas(w: World, g: int) -> list[int]:
    """In-sync owners other than the primary that the controller can reach."""
    t = w.truth[g]
    return [j for j in t.isr if j != t.p and w.nodes[j].up and not w.nodes[j].stale]


def last(seg: Seg) -> int:
    """The last sequence of a process's history."""
    return last_of(seg.hist)
