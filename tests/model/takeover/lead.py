"""A process that considers itself primary: CLAIM, LOOK, FENCE, ACTIVE, READ, DECIDE, then a reset or operations."""

from __future__ import annotations

from collections.abc import Iterator

from deelog_connector.core import history as past
from tests.model.takeover.kafka import Kafka, Put
from tests.model.takeover.owners import Owners
from tests.model.takeover.shipped import Scan, Shipped
from tests.model.takeover.state import (
    BUDGETS,
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
    partition,
    put,
    set_node,
    set_seg,
    set_truth,
    stable,
    use,
    without,
)

FENCED_TOO_OFTEN = 3


class Lead:
    """The steps of a primary and of its clients."""

    def __init__(self, config: Config, shipped: Shipped, kafka: Kafka, owners: Owners) -> None:
        self.config, self.shipped, self.kafka, self.owners = config, shipped, kafka, owners
        self.removed = config.removed

    def steps(self, w: World, i: int, g: int) -> Iterator[WorldStep]:
        """Every step of process i as primary of segment g."""
        n = w.nodes[i]
        m, can = n.segs[g], not n.fenced and not n.tx
        yield from self._clients(w, i, g, m)
        if m.role == "f":
            yield self._fence(w, i, g, m)
        elif m.role in "lr":
            yield from self._read(w, i, g, m)
        elif m.role == "z" and "release_is_final" in self.removed:
            yield by_itself(
                "writes on", f"{name_of(w, i)} hears of no new owner and writes on", set_seg(w, i, g, role="o")
            )
        elif can and m.role in "ck":
            yield self._claim(w, i, g, m)
        elif can and m.role == "a":
            yield self._active(w, i, g, m)
        elif can and m.role == "t":
            yield self._begin(w, i, g, m)
        elif can and m.role == "u":
            yield from self._rows(w, i, g, m)
        elif can and m.role == "o":
            yield from self._write(w, i, g, m)

    def reinit(self, w: World, i: int) -> WorldStep:
        """The process notices that it is fenced: it opens a new session, and each segment resumes its phase."""
        x = set_node(self.kafka.fence(w, node_id(w.nodes[i].member), but=i), i, fenced=0)
        for g, m in enumerate(w.nodes[i].segs):
            if m.role not in LEADS:
                continue
            role = self.shipped.phase_after_failure(m.role)
            if role is None:
                continue
            # CHECK recheck-keeps-place, recheck-after-fence, fence-once: all are in the product's table RECHECK.
            changes = {"role": role, "re": int(role != "c"), "known": NO, "off": -1, "snap": NO}
            x = set_seg(x, i, g, **changes, owe=int(m.owe or m.role == "u"))
        return by_itself("re-initialises", f"{name_of(w, i)} finds itself fenced, re-initialises its producer", x)

    def look_at_ends(self, w: World, i: int, p: int) -> WorldStep:
        """A process sees that a partition was truncated: its primary segments there owe a reset."""
        n = w.nodes[i]
        x = set_node(w, i, truncated=n.truncated & ~(1 << p))
        for g, m in enumerate(n.segs):
            if m.role in LEADS and partition(self.config, g) == p and "truncation_noticed" not in self.removed:
                x = set_seg(x, i, g, owe=1, cand=NO, rf=0, base=0)
                if self.shipped.phase_after_failure(m.role) == "a":
                    x = set_seg(x, i, g, role="a", re=1, known=NO, off=-1, snap=NO)
        return by_itself("notices truncation", f"{name_of(w, i)} sees that partition {p} was truncated", x)

    # -- clients ---------------------------------------------------------------------------------------------------

    def _clients(self, w: World, i: int, g: int, m: Seg) -> Iterator[WorldStep]:
        stale = w.nodes[i].stale
        budget = "GHOST" if stale else "OPS"
        many = left(w, budget)
        for key in range((1 if stale else self.config.KEYS) if many else 0):
            value = 90 * stale + self.config.budgets[BUDGETS.index(budget)] - many + 1
            x, op = self.capture(use(w, budget), i, g, key, value)
            words = f"client writes k{key}={value} of s{g} at {name_of(w, i)}: ({op[0]},{op[1]})"
            yield from_outside("write", words, x)
        if left(w, "READS") and self.config.CAP and m.lru and not stale:
            for key in m.lru[:-1]:
                x = set_seg(use(w, "READS"), i, g, lru=(*without(m.lru, key), key))
                yield from_outside("read", f"client reads k{key} of s{g} at {name_of(w, i)}", x)
        if stale and "answers_carry_epochs" in self.removed:
            x = self.owners.note_acks(w, i, g)
            if x != w:
                words = f"{name_of(w, i)} counts the answers of nodes in a newer epoch"
                yield by_itself("counts answers", words, x, acked_in(x, g))

    def capture(self, w: World, i: int, g: int, key: int, value: int) -> tuple[World, Op]:
        """Captures an operation at the segment's next position, and the eviction that it causes at the one after."""
        m = w.nodes[i].segs[g]
        op = (m.e, last(m) + 1, key, value)
        ops, st, lru = [op], put(m.st, key, value), (*without(m.lru, key), key) if self.config.CAP and value else m.lru
        if self.config.CAP and sum(map(bool, st)) > self.config.CAP:
            ops.append((m.e, op[1] + 1, lru[0], 0))
            st, lru = put(st, lru[0], 0), lru[1:]
        hist = m.hist
        for o in ops:
            hist = past.extended(hist, o[:2])
        w = set_seg(w, i, g, log=(*m.log, *ops), hist=hist, st=st, lru=lru)
        return self.owners.note_acks(w, i, g), op

    # -- the takeover ----------------------------------------------------------------------------------------------

    def _claim(self, w: World, i: int, g: int, m: Seg) -> WorldStep:
        """Commits a claim. If a rule about the order of steps is removed, another step comes first."""
        name, member = name_of(w, i), w.nodes[i].member
        early = self.removed & {"look_behind_claim", "claim_before_fence"}
        if m.role == "c" and early:
            here = self.kafka.records(w, g, 0, stable(self.kafka.log(w, g)))
            seen = self._claims(w.pos[g][0], self.shipped.scan(m.hist, None, here))
            found = self.shipped.seen(seen, w.pos[g][3], m.e, member)
            if found.outranked:
                return by_itself("steps down", f"{name} sees a higher claim of s{g}, steps down", self._down(w, i, g))
            role = "f" if found.nodes and "claim_before_fence" in self.removed else "k"
            return by_itself(
                "looks early", f"{name} reads the claims of s{g}", set_seg(w, i, g, role=role, victims=found.victims)
            )
        offset = len(self.kafka.log(w, g))
        x = set_seg(w, i, g, role="l", off=offset, known=NO)
        record = ("claim", g, m.e, last(m), 0, 0, m.e, member)
        x, bad = self.kafka.commit(x, i, g, [record], [(g, "claim", (m.e, member, offset, NO))])
        return by_itself("claims", f"{name} claims s{g} in epoch {m.e}", x, bad)

    def _claims(self, known: tuple[tuple[int, int], ...], scan: Scan) -> tuple[tuple[int, int], ...]:
        if "claims_outlive_compaction" in self.removed:
            return scan.claims
        return tuple(sorted({*known, *scan.claims}))

    def _read(self, w: World, i: int, g: int, m: Seg) -> Iterator[WorldStep]:
        """LOOK and READ. They need the process's own record, on both topics."""
        visible = stable(self.kafka.log(w, g))
        elsewhere = "each_partition_is_read" in self.removed and stable(w.logs[0]) == len(w.logs[0])
        if "read_to_own_record" in self.removed or elsewhere:
            m = m._replace(known=m.known or w.pos[g])
        elif m.off >= visible or not m.known:
            return
        if m.role == "l" or m.re:
            start = self.shipped.start(m.hist, m.e, m.known) if not m.owe else None
            # If a reset is certain, or no earlier record counts, it continues from its own record.
            frm = m.off if start is None or start.offset is None else start.offset
            written = -1 if start is None or start.written is None else start.written
            base = m.known[1][3] if m.known[1] else -1
            m = m._replace(frm=frm, w=written, base=base, rf=-1 if frm == m.off else frm)
        records = self.kafka.records(w, g, m.frm, min(m.off, visible))
        scan = self.shipped.scan(m.hist, None if m.w < 0 else m.w, records)
        yield self._look(w, i, g, m, scan) if m.role == "l" else self._decide(w, i, g, m, scan)

    def _look(self, w: World, i: int, g: int, m: Seg, scan: Scan) -> WorldStep:
        name, member = name_of(w, i), w.nodes[i].member
        seen = self._claims(m.known[0], scan)
        down, victims, nodes = self.shipped.seen(seen, m.known[3], m.e, member)
        if down and "look_behind_claim" not in self.removed:
            return by_itself(
                "steps down", f"{name} looks at its claim of s{g}: a higher one, steps down", self._down(w, i, g)
            )
        if "claim_before_fence" in self.removed:
            nodes = NO
        x = set_seg(w, i, g, role="f" if nodes else "a", victims=victims, frm=m.frm, w=m.w, base=m.base, rf=m.rf)
        kind = "skips the fence" if m.known[3] and not nodes else "looks"
        return by_itself(kind, f"{name} looks at its claim of s{g}: must fence {[f'n{v}' for v in nodes]}", x)

    def _down(self, w: World, i: int, g: int) -> World:
        return set_seg(w, i, g, **{**IDLE, "role": "-"})

    def _fence(self, w: World, i: int, g: int, m: Seg) -> WorldStep:
        x, nodes = w, self.shipped.seen(m.victims, NO, m.e, w.nodes[i].member).nodes
        for node in nodes:
            x = self.kafka.fence(x, node)
        role = "k" if "claim_before_fence" in self.removed and m.off < 0 else "a"
        nf = m.nf + ("fence_once" in self.removed)
        x = set_seg(x, i, g, role=role, nf=nf)
        bad = "V6 fencing without end" if nf > FENCED_TOO_OFTEN else None
        return by_itself("fences", f"{name_of(w, i)} fences {[f'n{v}' for v in nodes]} for s{g}", x, bad)

    def _active(self, w: World, i: int, g: int, m: Seg) -> WorldStep:
        member, offset = w.nodes[i].member, len(self.kafka.log(w, g))
        x = set_seg(w, i, g, role="r", off=offset, known=NO, victims=NO)
        puts: list[Put] = [(g, "claim", (m.e, member, offset, NO if m.re else m.victims))]
        x, bad = self.kafka.commit(x, i, g, [("active", g, m.e, last(m), 0, 0, m.e, member)], puts)
        return by_itself("goes ACTIVE", f"{name_of(w, i)} commits ACTIVE of epoch {m.e} of s{g}", x, bad)

    def _decide(self, w: World, i: int, g: int, m: Seg, scan: Scan) -> WorldStep:
        name, member = name_of(w, i), w.nodes[i].member
        if m.re and self.shipped.seen(self._claims(m.known[0], scan), m.known[3], m.e, member).outranked:
            words = f"{name} looks at the claims of s{g} again: a higher one, steps down"
            return by_itself("steps down", words, self._down(w, i, g))
        owed = "owed" if m.owe else self.shipped.start(m.hist, m.e, m.known).owed
        why = self.shipped.reset_reason(scan, m.start, owed)
        unwritten = min((o[:2] for o in m.log if o[1] > (scan.written or 0)), default=None)
        if not why and self.shipped.decisions.is_overtaken(unwritten, scan.ahead):
            why, w = "phantom_ahead", set_truth(w, g, excuse=1)
        if why:
            needless = not w.truth[g].excuse and not (why == "end_beyond" and self.config.ACKS < 2)
            x = set_seg(w, i, g, role="t", re=0, owe=2 if needless else 1)
            return by_itself("must reset", f"{name} reads s{g}: {why}: must reset", x)
        written = scan.written or 0
        cand = (stable(self.kafka.log(w, g)), written)
        base = max(m.base, self.kafka.last_begin(w, g, m.off)) if scan.complete else m.base
        x = set_seg(w, i, g, role="o", w=written, rf=m.rf, base=base, cand=cand, re=0)
        fixed = ""
        for key in self.shipped.corrections(scan.phantoms, NO if self.config.FILTER else m.log, written):
            x, op = self.capture(x, i, g, key, m.st[key])
            fixed += f", corrects k{key}={op[3]} as ({op[0]},{op[1]})"
        if scan.phantoms:
            x = set_seg(x, i, g, atomic=last(x.nodes[i].segs[g]))
        words = f"{name} reads s{g}: resumes behind {written}{fixed}"
        return by_itself("corrects" if fixed else "resumes", words, self.owners.note_acks(x, i, g))

    # -- a reset ---------------------------------------------------------------------------------------------------

    def _begin(self, w: World, i: int, g: int, m: Seg) -> WorldStep:
        offset, member = len(self.kafka.log(w, g)), w.nodes[i].member
        x = set_seg(w, i, g, role="u", off=offset, owe=0, snap=NO)
        puts: list[Put] = [(g, "reset", (m.e, last(m), -1))]
        x, bad = self.kafka.commit(x, i, g, [("rb", g, m.e, last(m), 0, offset, m.e, member)], puts)
        # A superseded process may decide so, too: it cannot write, and then learns the reason.
        bad = bad or ("V5 needless reset" if m.owe > 1 and not w.truth[g].excuse else None)
        return by_itself("begins a reset", f"{name_of(w, i)} begins a reset of s{g}", x, bad)

    def _rows(self, w: World, i: int, g: int, m: Seg) -> Iterator[WorldStep]:
        """The entries are read at one position, then written chunk by chunk, then the end is written."""
        if m.off >= stable(self.kafka.log(w, g)) and not m.snap:
            return
        name, member, e = name_of(w, i), w.nodes[i].member, m.e
        at, entries, begin, done = m.snap or (m.hist[-1], m.st, m.off, 0)
        if self.owners.acked(w, i, g) < at[1] and "reset_acked_only" not in self.removed:
            if not m.snap:
                words = f"{name} reads the entries of s{g} at ({at[0]},{at[1]})"
                yield by_itself("reads entries", words, set_seg(w, i, g, snap=(at, entries, begin, 0)))
            return
        if "chunk_is_a_barrier" in self.removed and done:
            entries = m.st  # each chunk reads the cache again
        live = [k for k, v in enumerate(entries) if v]
        upto = min(len(live), done + (self.config.CHUNK or len(live)))
        records = [("rs", g, *at, k, entries[k], e, member) for k in live[done:upto]]
        puts: list[Put] = [(g, "reset", (*m.known[2][:2], begin) if m.known and m.known[2] else (e, at[1], begin))]
        if upto < len(live):
            x = set_seg(w, i, g, snap=(at, entries, begin, upto))
            x, bad = self.kafka.commit(x, i, g, records, puts if not done else [])
            yield by_itself("writes a chunk", f"{name} writes rows {done}..{upto - 1} of the reset of s{g}", x, bad)
            return
        records.append(("re", g, *at, 0, (begin, entries), e, member))
        owe = m.owe
        x = set_seg(w, i, g, role="t" if owe else "o", w=at[1], rf=begin, base=begin, cand=NO, atomic=0, snap=NO)
        puts = [(g, "position", (*at, begin, begin, e, member)), (g, "reset", NO)]
        x, bad = self.kafka.commit(x, i, g, records, puts)
        yield by_itself("ends a reset", f"{name} writes rows and the end of the reset of s{g}: {at}", x, bad)

    # -- operations ------------------------------------------------------------------------------------------------

    def _write(self, w: World, i: int, g: int, m: Seg) -> Iterator[WorldStep]:
        name, member, acked = name_of(w, i), w.nodes[i].member, self.owners.acked(w, i, g)
        if m.owe:
            yield by_itself("owes", f"{name} comes to the reset of s{g} that it owes", set_seg(w, i, g, role="t"))
            if "nothing_over_a_hole" not in self.removed:
                return
        pending = [o for o in m.log if o[1] > m.w]
        # Operations that must be in one transaction wait until all of them are acknowledged.
        atomic = 0 if "corrections_in_one_transaction" in self.removed else m.atomic
        run = [o for o in pending if o[1] <= acked][: max(1, atomic - m.w)] if acked >= atomic or atomic <= m.w else []
        if run:
            yield by_itself(*self._put(w, i, g, m, run, False))
            if left(w, "OPEN"):
                yield from_outside(*self._put(use(w, "OPEN"), i, g, m, run, True))
        elif not pending and left(w, "HAND") and acked >= last(m) and not m.owe:
            record, puts = ("rel", g, m.e, last(m), 0, 0, m.e, member), [(g, "release", (m.e, member))]
            x, bad = self.kafka.commit(use(w, "HAND"), i, g, [record], puts)
            yield from_outside("releases", f"{name} commits a release of s{g}", set_seg(x, i, g, role="z"), bad)
        if pending and left(w, "OVER"):
            keep = "nothing_over_a_hole" not in self.removed
            x = set_seg(set_truth(use(w, "OVER"), g, excuse=1), i, g, log=NO, start=last(m) + 1, owe=1)
            x = set_seg(x, i, g, role="t") if keep else set_seg(x, i, g, w=last(m))
            yield from_outside("overflow", f"{name}'s op log of s{g} overflows, is dropped; a reset is owed", x)
        if len(pending) > 1 and left(w, "COALESCE"):
            low = max(m.w, m.atomic)
            upto = self.owners.replicated(w, i, g)
            log = self.shipped.coalesced(m.log, low, upto)
            if log != m.log:
                x = set_seg(use(w, "COALESCE"), i, g, log=log, atomic=max(m.atomic, upto))
                yield from_outside("coalesces", f"{name} coalesces s{g} in ({low}, {upto}]", x)

    def _put(self, w: World, i: int, g: int, m: Seg, run: list[Op], opened: bool) -> tuple[str, str, World, str | None]:
        """A run of operations and their position record, in one transaction."""
        at, rf, cand = len(self.kafka.log(w, g)), m.rf, m.cand
        everywhere = self.owners.replicated(w, i, g)
        advanced = self.shipped.decisions.advanced_read_from(cand or None, m.w, everywhere, m.atomic)
        if advanced is not None:
            rf, cand = advanced, NO
        e, q = run[-1][:2]
        end = at + len(run)
        cand = cand or ((at if opened else min(end, max(at, stable(self.kafka.log(w, g))))), q)
        position = (e, q, rf, m.base, m.e, w.nodes[i].member)
        x = set_seg(w, i, g, w=q, rf=rf, cand=cand)
        dropped = self.config.FILTER or None
        records = [("sk" if op[3] == dropped else "op", g, *op, m.e, w.nodes[i].member) for op in run]
        x, bad = self.kafka.commit(x, i, g, records, [(g, "position", position)], opened)
        what = ", ".join(f"({o[0]},{o[1]}) k{o[2]}={o[3]}" for o in run)
        words = f"{name_of(w, i)} writes{', not yet committed,' if opened else ''} {what} of s{g}"
        kind = "writes a run" if len(run) > 1 else "writes open" if opened else "writes"
        return kind, words, x, bad
