"""Kafka as the protocol sees it: transactions, last stable offset, fencing, compaction, truncation; and the checker.

The positions topic is compacted at once to the latest record per key, which is the worst case. A transaction of a
process is committed in one step unless it is left open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tests.model.takeover.shipped import Shipped
from tests.model.takeover.state import (
    FOREIGN,
    Config,
    Rec,
    World,
    WorldStep,
    by_itself,
    from_outside,
    left,
    name_of,
    node_id,
    partition,
    put,
    set_node,
    set_seg,
    set_truth,
    stable,
    use,
)

Put = tuple[int, str, Any]
"""A record of the positions topic: (segment, claim | position | reset | release, value). A claim is (epoch, member,
offset, victims), a release (epoch, member)."""


class Kafka:
    """Requests to Kafka, and its own steps."""

    def __init__(self, config: Config, shipped: Shipped) -> None:
        self.config, self.shipped = config, shipped
        self.kinds = {"claim": 0, "position": 1, "reset": 2, "release": 3}

    def log(self, w: World, g: int) -> tuple[Rec | None, ...]:
        """The log of a segment's partition."""
        return w.logs[partition(self.config, g)]

    def records(self, w: World, g: int, begin: int, end: int) -> tuple[Rec, ...]:
        """A segment's committed records in an offset range."""
        return tuple(r for r in self.log(w, g)[max(begin, 0) : max(end, 0)] if r and not r.status and r.seg == g)

    def last_begin(self, w: World, g: int, end: int) -> int:
        """The offset of the segment's last begin of a reset below an offset; -1 without one."""
        log = self.log(w, g)
        return max(
            (x for x, r in enumerate(log[:end]) if r and not r.status and r.seg == g and r.kind == "rb"), default=-1
        )

    # -- transactions ----------------------------------------------------------------------------------------------

    def commit(
        self, w: World, i: int, g: int, recs: Iterable[tuple[Any, ...]], puts: Iterable[Put], opened: bool = False
    ) -> tuple[World, str | None]:
        """One transaction of a process on one segment: the world after it, and the promise that it breaks."""
        status, p = (i + 1 if opened else 0), partition(self.config, g)
        at = len(w.logs[p])
        log = w.logs[p] + tuple(Rec(status, *r) for r in recs)
        pend = w.pend[p] + tuple((status, *x) for x in puts)
        w = w._replace(logs=put(w.logs, p, log), pend=put(w.pend, p, pend))
        if opened:
            return set_node(w, i, tx=1), None
        return self._judge(self._settle(w, p), p, range(at, len(log)))

    def _settle(self, w: World, p: int) -> World:
        """All waiting readers read the records below the positions topic's last stable offset."""
        pend, pos = list(w.pend[p]), list(w.pos)
        while pend and not pend[0][0]:
            _, g, what, value = pend.pop(0)
            if what == "x":
                continue
            if what == "claim":
                claims = self.shipped.claims_after(pos[g][0], value[:2], value[3])
                pos[g] = (claims, *pos[g][1:])
                w = self._heard(w, g, value[1], value[2], pos[g])
            else:
                pos[g] = put(pos[g], self.kinds[what], value)
                if what == "release":
                    pos[g] = put(pos[g], 0, self.shipped.claims_after(pos[g][0], None, (value,)))
                if what == "position" and "position_is_not_claim" in self.config.removed:
                    pos[g] = put(pos[g], 0, ((value[4], value[5]),))
        return w._replace(pend=put(w.pend, p, tuple(pend)), pos=tuple(pos))

    def _heard(self, w: World, g: int, member: int, offset: int, known: tuple[Any, ...]) -> World:
        for i, n in enumerate(w.nodes):
            if n.member == member and n.segs[g].off == offset and n.segs[g].role in "lr":
                # CHECK read-to-own-record: the claims known when a node's own record is read, no later and no earlier.
                return set_seg(w, i, g, known=known)
        return w

    def end_transaction(self, w: World, status: int, keep: bool) -> tuple[World, str | None]:
        """Commits or aborts the open transaction with this status."""
        bad: str | None = None
        if status != FOREIGN:
            w = set_node(w, status - 1, tx=0)
        for p, log in enumerate(w.logs):
            mine = [x for x, r in enumerate(log) if r and r.status == status]
            ended = tuple((r._replace(status=0) if keep else None) if r and r.status == status else r for r in log)
            pend = tuple((0, *x[1:]) if x[0] == status else x for x in w.pend[p] if keep or x[0] != status)
            w = self._settle(w._replace(logs=put(w.logs, p, ended), pend=put(w.pend, p, pend)), p)
            if keep and status != FOREIGN:
                w, found = self._judge(w, p, mine)
                bad = bad or found
        return (w._replace(foreign=0) if status == FOREIGN else w), bad

    def fence(self, w: World, node: int, but: int = -1) -> World:
        """Initialises a node's transactional id: its open transaction is aborted, later ones are refused."""
        for j, n in enumerate(w.nodes):
            if node_id(n.member) == node and j != but:
                if n.tx:
                    w, _ = self.end_transaction(w, j + 1, False)
                if n.up:
                    w = set_node(w, j, fenced=1)
        return w

    # -- the checker -----------------------------------------------------------------------------------------------

    def _judge(self, w: World, p: int, offsets: Iterable[int]) -> tuple[World, str | None]:
        log = w.logs[p]
        for x in offsets:
            r = log[x]
            assert r is not None
            top = w.truth[r.seg].top
            if r.kind == "active" and r.by > top[0]:
                w = set_truth(w, r.seg, top=(r.by, x))
            if r.kind in ("op", "sk", "rb", "rs", "re") and r.by < top[0] and x > top[1]:
                return w, f"V2 a record of epoch {r.by} stands behind the ACTIVE of epoch {top[0]}"
            if r.kind == "op" and sum(1 for o in log if o and not o.status and o[1:5] == r[1:5]) > 1:
                return w, f"V3 position ({r.epoch},{r.seq}) is committed twice"
        return w, None

    # -- steps -----------------------------------------------------------------------------------------------------

    def steps(self, w: World) -> Iterator[WorldStep]:
        """The steps of Kafka and of producers that are not modelled."""
        for i, n in enumerate(w.nodes):
            if n.tx and not (n.up and n.fenced):
                what = f"{name_of(w, i)} commits its open transaction" if n.up else f"{name_of(w, i)}'s times out"
                yield by_itself("commits what was open", what, *self.end_transaction(w, i + 1, bool(n.up)))
        if w.foreign:
            words = "the transaction of a node of other segments ends"
            yield by_itself("foreign transaction ends", words, *self.end_transaction(w, FOREIGN, True))
        elif left(w, "FOREIGN"):
            for p in range(self.config.PARTS):
                log = (*w.logs[p], Rec(FOREIGN, "x", -1, 0, 0, 0, 0, 0, 0))
                pend = (*w.pend[p], (FOREIGN, -1, "x", 0))
                x = use(w, "FOREIGN")._replace(foreign=p + 1, logs=put(w.logs, p, log), pend=put(w.pend, p, pend))
                words = f"a node of other segments opens a transaction at offset {len(log) - 1} of partition {p}"
                yield from_outside("foreign transaction", words, x)
        if left(w, "COMPACT"):
            yield from self._compaction(w)
        if left(w, "TRUNC"):
            yield from self._truncations(w)

    def _compaction(self, w: World) -> Iterator[WorldStep]:
        config = self.config
        busy = any(s.role in "klfar" and not (n.stale and config.COMPACTANY) for n in w.nodes for s in n.segs)
        if busy and config.COMPACTANY < 2:
            return
        logs = []
        for log in w.logs:
            end, seen, kept = stable(log), set(), list(log)
            for x in range(end - 1, -1, -1):
                r = log[x]
                if r is None:
                    continue
                superseded = (r.seg, r.key) in seen
                if r.kind in ("claim", "active", "rel") or (
                    config.COMPACTKEYS and (r.kind == "rb" or (superseded and r.kind in ("op", "rs")))
                ):
                    kept[x] = None
                if r.kind in ("op", "rs"):
                    seen.add((r.seg, r.key))
            logs.append(tuple(kept))
        if tuple(logs) != w.logs:
            x2 = use(w, "COMPACT")._replace(logs=tuple(logs))
            for g in range(config.SEGS if config.COMPACTKEYS else 0):
                x2 = set_truth(x2, g, excuse=1)  # a reset repairs what min.compaction.lag.ms prevents
            yield from_outside("compaction", "compaction removes what it may", x2)

    def _truncations(self, w: World) -> Iterator[WorldStep]:
        """An unclean election truncates a partition of the change topic; every process that watches it can see that."""
        for p, log in enumerate(w.logs):
            here = [g for g in range(self.config.SEGS) if partition(self.config, g) == p]
            awaited = [n.segs[g].off for n in w.nodes for g in here if n.segs[g].role in "lru"]
            for cut in range(1 if self.config.TRUNCANY else max([1, *(x + 1 for x in awaited)]), stable(log)):
                if any(r and r.status for r in log):
                    break
                if not any(r and r.kind in ("op", "re") for r in log[cut:]):
                    break
                x = use(w, "TRUNC")._replace(logs=put(w.logs, p, log[:cut]))
                for i, n in enumerate(w.nodes):
                    if n.up:
                        x = set_node(x, i, truncated=n.truncated | 1 << p)
                for g, t in enumerate(w.truth):
                    if partition(self.config, g) == p:
                        x = set_truth(x, g, excuse=1, top=(t.top[0], min(t.top[1], cut - 1)))
                yield from_outside("truncation", f"partition {p} is truncated to {cut}", x)
