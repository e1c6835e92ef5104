"""Owners: acknowledgement, election, catch-up, and nodes that join and leave."""

from __future__ import annotations

from collections.abc import Iterator

from deelog_connector.core import history as past
from tests.model.takeover.kafka import Kafka
from tests.model.takeover.shipped import Shipped
from tests.model.takeover.state import (
    IDLE,
    LEADS,
    NO,
    Config,
    Op,
    Seg,
    World,
    WorldStep,
    acked_in,
    by_itself,
    from_outside,
    last,
    left,
    name_of,
    node_id,
    put,
    replicas,
    set_node,
    set_seg,
    set_truth,
    use,
    without,
)


class Owners:
    """The steps of owners and of the controller."""

    def __init__(self, config: Config, shipped: Shipped, kafka: Kafka) -> None:
        self.config, self.shipped, self.kafka = config, shipped, kafka
        self.removed = config.removed
        self.empty = Seg(st=(0,) * config.KEYS)

    # -- acknowledgement -------------------------------------------------------------------------------------------

    def held_by_all(self, w: World, i: int, g: int) -> int:
        """The highest sequence that every in-sync owner in the epoch of primary i has."""
        n, t = w.nodes[i].segs[g], w.truth[g]
        if n.e != t.e or w.nodes[i].stale:
            return 0
        peers = [w.nodes[j].segs[g] for j in t.isr if j != i and j not in t.nowait]
        return min([last(n)] + [last(m) if m.e == n.e else 0 for m in peers])

    def acked(self, w: World, i: int, g: int) -> int:
        """The highest sequence that counts as acknowledged at primary i."""
        n, t = w.nodes[i].segs[g], w.truth[g]
        if self.config.ACKS < 2:
            return last(n)
        if n.e == t.e and not w.nodes[i].stale:
            return self.held_by_all(w, i, g)
        if "answers_carry_epochs" in self.removed:
            return min(last(m.segs[g]) for m in w.nodes if m.up)
        return max((q for e, q in t.ack if past.holds(n.hist, (e, q))), default=0)

    def replicated(self, w: World, i: int, g: int) -> int:
        """The highest sequence that primary i knows in every in-sync owner."""
        return self.acked(w, i, g) if self.config.ACKS == 2 else self.held_by_all(w, i, g)

    def note_acks(self, w: World, i: int, g: int) -> World:
        """Answers the clients of all operations that are acknowledged now."""
        if self.config.ACKS < 2:
            return w
        upto, ack = self.acked(w, i, g), dict(w.truth[g].ack)
        for e, q, _, _ in w.nodes[i].segs[g].log:
            if q <= upto:
                ack[e] = max(ack.get(e, 0), q)
        return set_truth(w, g, ack=tuple(sorted(ack.items())))

    # -- election --------------------------------------------------------------------------------------------------

    def promote(self, w: World, g: int, j: int) -> tuple[World, str | None]:
        """The controller makes j the primary; every node that is not cut off learns this."""
        e = w.truth[g].e + 1
        m = w.nodes[j].segs[g]
        lru = tuple(k for k, v in enumerate(m.st) if v) if self.config.CAP else NO  # the policy is rebuilt
        w = set_truth(w, g, e=e, p=j)
        w = set_seg(w, j, g, **{**IDLE, "role": "c", "e": e, "hist": past.opened(m.hist, e), "lru": lru})
        for x, n in enumerate(w.nodes):
            if x != j and n.up and not n.stale and n.segs[g].role in LEADS:
                w = set_seg(w, x, g, role="b", **IDLE)
        return w, acked_in(w, g)

    def drop_out(self, w: World, i: int, kind: str, why: str) -> Iterator[WorldStep]:
        """Removes a process from every view (dead or cut off); its segments get other primaries."""
        worlds: list[tuple[str, World, str | None]] = [(f"{name_of(w, i)} {why}", w, None)]
        for g in range(self.config.SEGS):
            following = []
            for words, x, bad in worlds:
                t = x.truth[g]
                x = set_truth(x, g, isr=without(t.isr, i), nowait=without(t.nowait, i))
                heirs = replicas(x, g) if t.p == i else []
                if t.p != i:
                    following.append((words, self.note_acks(x, t.p, g) if t.p >= 0 and i in t.isr else x, bad))
                elif not heirs:
                    y = set_truth(x, g, p=-1, isr=NO, lost=1, excuse=1)
                    following.append((f"{words}; s{g} has no owner left", y, bad))
                for j in heirs:
                    y, lost = self.promote(x, g, j)
                    following.append((f"{words}; {name_of(y, j)} becomes primary of s{g}", y, bad or lost))
            worlds = following
        for found in worlds:
            yield from_outside(kind, *found)

    def restart(self, w: World, i: int, budget: str, member: int) -> WorldStep:
        """Starts an empty process. It becomes primary of the segments without an owner, and backup of the others."""
        x = use(w, budget)
        if budget == "JOIN" or "one_id_per_node" not in self.removed:
            x = self.kafka.fence(x, node_id(member))
        x = set_node(x, i, member=member, up=1, fenced=0, truncated=0, segs=(self.empty,) * self.config.SEGS)
        alone = ""
        for g, t in enumerate(x.truth):
            if t.p < 0:
                e = t.e + 1
                x = set_truth(x, g, e=e, p=i, isr=(i,))
                x, alone = set_seg(x, i, g, role="c", e=e, hist=past.opened(NO, e)), ", alone"
        kind = "restart" if budget == "JOIN" else "newer process"
        return from_outside(kind, f"{name_of(x, i)} starts, empty{alone}", x)

    # -- backups ---------------------------------------------------------------------------------------------------

    def catch_up(self, w: World, g: int, j: int) -> tuple[World, str]:
        """Backup j adopts the primary's epoch and history: by operations if possible, else by state transfer."""
        d, t = self.shipped.decisions, w.truth[g]
        p, m = w.nodes[t.p].segs[g], w.nodes[j].segs[g]
        common = d.common_point(p.hist, m.hist)
        if d.holds_all_after(p.start, common) and d.knows_what_it_drops(m.start, last(m), common):
            log = (*(o for o in m.log if o[1] <= common), *(o for o in p.log if o[1] > common))
            start, how = m.start, "operations"
        else:
            keep = "transfer_is_not_ops" in self.removed
            log, start, how = (m.log if keep else NO), (m.start if keep else last(p) + 1), "state"
            # Below acks=all a backup may have pruned operations that its new primary never had: their keys are unknown.
            if p.start > common + 1 or (self.config.ACKS < 2 and m.start > common + 1):
                w = set_truth(w, g, excuse=1)
        w = set_seg(w, j, g, role="b", e=p.e, hist=p.hist, st=p.st, log=log, start=start)
        if j not in t.isr:
            nowait = (*t.nowait, j) if "in_sync_order" in self.removed else t.nowait
            w = set_truth(w, g, isr=tuple(sorted((*t.isr, j))), nowait=nowait)
        return self.note_acks(w, t.p, g), how

    def back(self, w: World, i: int, g: int, m: Seg) -> Iterator[WorldStep]:
        """Steps of a backup: adopt a new epoch, apply the next operation, or copy state that the primary has pruned."""
        p = w.nodes[w.truth[g].p]
        if p.stale or not p.up:
            return
        pm, name = p.segs[g], name_of(w, i)
        op = next((o for o in pm.log if o[1] == last(m) + 1), None)
        if m.role == "-" or m.e != pm.e:
            x, how = self.catch_up(w, g, i)
            words = f"{name} becomes backup of s{g} (epoch {pm.e}), catches up by {how}"
            yield by_itself(f"catch-up by {how}", words, x)
        elif op:
            x = set_seg(w, i, g, log=(*m.log, op), hist=past.extended(m.hist, op[:2]), st=self._applied(m.st, op))
            words = f"{name} applies ({op[0]},{op[1]})"
            yield by_itself("applies", words, self.note_acks(x, w.truth[g].p, g))
        elif last(m) < last(pm):
            x, how = self.catch_up(w, g, i)
            words = f"{name} leaves the in-sync set of s{g}, catches up by {how}, is back"
            yield by_itself(f"catch-up by {how}", words, x)
        elif i in w.truth[g].nowait:
            x = set_truth(w, g, nowait=without(w.truth[g].nowait, i))
            yield by_itself("is waited for", f"the primary begins to wait for {name}", x)
        if m.log and left(w, "OVER"):
            x = set_seg(set_truth(use(w, "OVER"), g, excuse=1), i, g, log=NO, start=last(m) + 1)
            yield from_outside("overflow", f"{name}, a backup, drops its op log of s{g}", x)

    def _applied(self, st: tuple[int, ...], op: Op) -> tuple[int, ...]:
        st = put(st, op[2], op[3])
        if "primary_decides_eviction" in self.removed and self.config.CAP and sum(map(bool, st)) > self.config.CAP:
            st = put(st, next(k for k, v in enumerate(st) if v and k != op[2]), 0)
        return st

    def prunes(self, w: World, i: int, g: int, m: Seg) -> Iterator[WorldStep]:
        """Each owner with an op log prunes it by the position record."""
        position = w.pos[g][1]
        if m.log and m.log[0][1] <= position[1] and self.shipped.decisions.holds(m.hist, position[:2]):
            upto = position[1]
            log = tuple(o for o in m.log if o[1] > upto)
            x = set_seg(w, i, g, log=log, start=max(m.start, upto + 1))
            yield by_itself("prunes", f"{name_of(w, i)} prunes s{g} to {upto}", x)

    # -- the controller, and nodes that leave ----------------------------------------------------------------------

    def moves(self, w: World) -> Iterator[WorldStep]:
        """The controller moves segments."""
        for g, t in enumerate(w.truth):
            if t.p < 0:
                continue
            freed = w.nodes[t.p].segs[g].role == "z"
            if freed and not w.nodes[t.p].stale:
                x, bad = self.promote(w, g, t.p)
                yield by_itself("elected again", f"the controller leaves s{g} with {name_of(w, t.p)}", x, bad)
            for j in replicas(w, g) if freed or left(w, "MOVE") else NO:
                x, bad = self.promote(w if freed else use(w, "MOVE"), g, j)
                words = f"the controller moves s{g} from {name_of(w, t.p)} to {name_of(w, j)}"
                yield (by_itself if freed else from_outside)("handover" if freed else "move", words, x, bad)
        if left(w, "SWAP") and self.config.SEGS == 2 and 0 <= w.truth[0].p != w.truth[1].p >= 0:
            a, b = w.truth[0].p, w.truth[1].p
            if b in replicas(w, 0) and a in replicas(w, 1):
                x, bad = self.promote(use(w, "SWAP"), 0, b)
                x, bad2 = self.promote(x, 1, a)
                words = f"the controller swaps s0 and s1 between {name_of(w, a)} and {name_of(w, b)}"
                yield from_outside("swap", words, x, bad or bad2)

    def faults(self, w: World, i: int) -> Iterator[WorldStep]:
        """The faults of a running process."""
        n, config = w.nodes[i], self.config
        segs = (self.empty,) * config.SEGS
        gone = {"up": 0, "stale": 0, "fenced": 0, "truncated": 0, "segs": segs}
        if left(w, "CRASH") and any(m.role != "-" for m in n.segs):
            yield from self.drop_out(set_node(use(w, "CRASH"), i, **gone), i, "crash", "dies")
            if "incarnation" in self.removed and not n.stale and any(m.role in LEADS for m in n.segs):
                yield self._same_member(w, i)
        if left(w, "STOP") and n.up and any(m.role == "z" for m in n.segs):
            yield from self.drop_out(set_node(use(w, "STOP"), i, **gone), i, "clean stop", "has released, and ends")
        mine = [g for g, t in enumerate(w.truth) if t.p == i]
        if left(w, "PART") and not n.stale and mine and all(replicas(w, g) for g in mine):
            x = set_node(use(w, "PART"), i, stale=1)
            yield from self.drop_out(x, i, "cut off", "is cut off from the others")
        if n.stale:
            x = set_node(w, i, stale=0)
            for g in range(config.SEGS):
                x = set_seg(x, i, g, role="-", **IDLE)
            yield from_outside("hears of the view", f"{name_of(w, i)} hears of the present view", x)
            spare = next((j for j, o in enumerate(w.nodes) if j >= config.N and not o.up), None)
            if left(w, "TWIN") and spare is not None:
                yield self.restart(w, spare, "TWIN", n.member + 10)
        if left(w, "XFENCE") and not n.fenced and any(m.role in LEADS for m in n.segs):
            x = self.kafka.fence(use(w, "XFENCE"), node_id(n.member))
            yield from_outside("fenced elsewhere", f"{name_of(w, i)} is fenced for a segment elsewhere", x)

    def _same_member(self, w: World, i: int) -> WorldStep:
        n = w.nodes[i]
        x = self.kafka.fence(use(w, "CRASH"), node_id(n.member))
        x = set_node(x, i, fenced=0, segs=(self.empty,) * self.config.SEGS)
        bad = None
        for g, m in enumerate(n.segs):
            if m.role in LEADS:
                x = set_truth(x, g, excuse=1)
                x = set_seg(x, i, g, role="c", e=m.e, hist=past.opened(NO, m.e))
                bad = bad or acked_in(x, g)
        return from_outside(
            "crash", f"{name_of(w, i)} dies and restarts empty; the view still names it primary", x, bad
        )
