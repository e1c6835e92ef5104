"""The state of the takeover model: immutable and hashable, and the helpers that make the next one.

Members are numbers (node + 10 * incarnation), values small integers with 0 for "absent", so that a state hashes fast;
`shipped.py` turns them into what the product's functions take.
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
"""Roles of a node that believes it is primary: c is to read claims, k to claim, l looks, f fences, a is to go ACTIVE,
r reads and decides, t owes a reset, u writes one, o writes operations, z has released. Others: - none, b backup."""
NO: Final[tuple[Any, ...]] = ()
FOREIGN: Final = 99
"""Status of a record in the open transaction of a node that is not modelled."""

BUDGETS: Final = (
    "OPS",  # client writes
    "CRASH",  # a process dies
    "JOIN",  # a dead node comes back, empty
    "PART",  # a primary is cut off from the nodes, not from Kafka, and keeps its view
    "GHOST",  # a client writes at a node that is cut off
    "TWIN",  # a newer process of a node that is cut off starts
    "OPEN",  # operations stand in an open transaction
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
    "READS",  # a client reads, which changes what is evicted next
)


@dataclass(frozen=True)
class Config:
    """The bounds of one search. Names in capitals are those of the command line."""

    N: int = 2
    SEGS: int = 1
    PARTS: int = 1
    KEYS: int = 1
    ACKS: int = 2
    """2: by all in-sync owners, 1: by the primary alone."""
    CHUNK: int = 0
    """Rows of a reset in one transaction; 0: all."""
    CAP: int = 0
    """Entries that a segment may hold before one is evicted; 0: any number."""
    COMPACTANY: int = 0
    """0: nothing is compacted during a takeover, 1: but that of a node cut off, 2: at any time."""
    COMPACTKEYS: int = 0
    """1: compaction also removes change records that a later one of their key supersedes."""
    TRUNCANY: int = 0
    """0: Kafka loses no record that a process waits for, 1: any."""
    AHEAD: int = 0
    """1: DECIDE resets where a phantom stands above an operation that is pending here. The product does not yet."""
    budgets: tuple[int, ...] = (1,) + (0,) * (len(BUDGETS) - 1)
    removed: frozenset[str] = field(default_factory=frozenset)
    """The rules that are removed."""

    @classmethod
    def parse(cls, text: str) -> Config:
        """From `N=3 OPS=2 fencing=0`; ValueError names what is unknown."""
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
    """A record of the change topic. `status` 0: committed, else whose transaction it is open in."""

    status: int
    kind: str  # op, claim, active, rel, rb (reset begin), rs (row), re (reset end), x (of nobody here)
    seg: int
    epoch: int  # of its position
    seq: int
    key: int
    val: Any  # value; of rb and re the reset's id; of re also the entries at its position
    by: int  # epoch of the claim it was written under
    who: int  # member


class Seg(NamedTuple):
    """What one process knows of one segment."""

    role: str = "-"
    e: int = 0  # epoch of its view
    hist: History = ()
    log: tuple[Op, ...] = ()  # the op log
    start: int = 1  # complete from
    st: tuple[int, ...] = ()  # the cache
    lru: tuple[int, ...] = ()  # keys from the least to the most recently used, where entries are evicted
    w: int = 0  # written, as owner; -1 unknown
    off: int = -1  # offset of the control record of its own that it waits for
    known: tuple[Any, ...] = ()  # (claims, position, reset, release) when its own record came on the positions topic
    frm: int = -1  # where its scan begins
    victims: Claims = ()
    rf: int = -1  # the read_from that it may announce
    base: int = -1
    cand: tuple[int, ...] = ()  # (offset, sequence): the next read_from, once every in-sync owner holds it
    atomic: int = 0  # one transaction must hold everything up to here
    re: int = 0  # its ACTIVE follows a fence: look at the claims again
    owe: int = 0  # owes a reset whatever READ says; 2: one that nothing called for
    snap: tuple[Any, ...] = ()  # (position, cache, begin offset, rows written) of its reset
    nf: int = 0  # fences done for this claim; counted only where one could go on for ever


IDLE: Final = {
    "w": 0, "off": -1, "known": NO, "frm": -1, "victims": NO, "rf": -1, "base": -1, "cand": NO, "atomic": 0, "re": 0,
    "owe": 0, "snap": NO, "nf": 0, "lru": NO,
}  # fmt: skip
"""What a process that is no primary, or is one anew, starts from."""


class Node(NamedTuple):
    """A process. `truncated` has a bit per partition whose loss it has not looked at yet."""

    member: int
    up: int
    stale: int  # cut off from the other nodes
    fenced: int  # its producer's session was ended by somebody
    tx: int  # it has an open transaction
    truncated: int
    segs: tuple[Seg, ...]


class Truth(NamedTuple):
    """What the controller and the judge know of one segment."""

    e: int
    p: int  # primary, -1 none
    isr: tuple[int, ...]
    nowait: tuple[int, ...] = ()  # in the set, but not waited for yet (in_sync_order removed)
    ack: tuple[tuple[int, int], ...] = ()  # ((epoch, highest acked sequence), ...)
    top: tuple[int, int] = (0, -1)  # highest epoch that went ACTIVE, and its offset
    excuse: int = 0  # from here on a reset is legitimate
    lost: int = 0  # every in-sync owner died


class World(NamedTuple):
    """Everything. `pend` is the positions topic from the first open record on, `pos` what stands below, by segment."""

    nodes: tuple[Node, ...]
    logs: tuple[tuple[Rec | None, ...], ...]
    pend: tuple[tuple[Any, ...], ...]
    pos: tuple[tuple[Any, ...], ...]  # (claims, position, reset, release)
    truth: tuple[Truth, ...]
    left: tuple[int, ...]
    foreign: int  # 1 + the partition in which a transaction of somebody else is open


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
    """The world with fields of what a process knows of a segment changed."""
    segs = w.nodes[i].segs
    return set_node(w, i, segs=put(segs, g, segs[g]._replace(**changes)))


_INDEX: Final = {name: i for i, name in enumerate(BUDGETS)}


def left(w: World, budget: str) -> int:
    """How often something may still happen."""
    return w.left[_INDEX[budget]]


def use(w: World, budget: str) -> World:
    """The world in which it has happened once more."""
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
    """The last stable offset: nothing behind the first record of an open transaction can be seen."""
    for offset, record in enumerate(log):
        if record is not None and record.status:
            return offset
    return len(log)


def acked_in(w: World, g: int) -> str | None:
    """An acknowledged operation that is in no history of the present primary, in words."""
    t = w.truth[g]
    history = w.nodes[t.p].segs[g].hist
    lost = next(((e, q) for e, q in t.ack if end_of(history, e) < q and not t.lost), None)
    return f"V1 acked operation {lost} is in no history of the new primary" if lost else None


def replicas(w: World, g: int) -> list[int]:
    """In-sync owners beside the primary that the controller can reach."""
    t = w.truth[g]
    return [j for j in t.isr if j != t.p and w.nodes[j].up and not w.nodes[j].stale]


def last(seg: Seg) -> int:
    """The last sequence of a process's history."""
    return last_of(seg.hist)
