"""The takeover model as a space to search."""

from __future__ import annotations

from collections.abc import Iterator

from deelog_connector.core.history import end_of
from tests.model.takeover.kafka import Kafka
from tests.model.takeover.lead import Lead
from tests.model.takeover.owners import Owners
from tests.model.takeover.shipped import Decisions, Shipped
from tests.model.takeover.state import (
    LEADS,
    NO,
    Config,
    Node,
    Rec,
    Seg,
    Truth,
    World,
    WorldStep,
    acked_in,
    left,
    node_id,
    partition,
)


class Takeover:
    """`decisions` are the product's, except for the rules that a search removes."""

    def __init__(self, config: Config, decisions: Decisions | None = None) -> None:
        self.config = config
        self.shipped = Shipped(decisions or Decisions())
        self.kafka = Kafka(config, self.shipped)
        self.owners = Owners(config, self.shipped, self.kafka)
        self.lead = Lead(config, self.shipped, self.kafka, self.owners)

    def first(self) -> World:
        """Every node owns every segment. The primaries are ACTIVE in epoch 1, and nothing was written yet."""
        c = self.config
        logs: list[list[Rec | None]] = [[] for _ in range(c.PARTS)]
        pos, truth = [], []
        for g in range(c.SEGS):
            p, log = g % c.N, logs[partition(c, g)]
            begin = len(log) + 2  # a segment begins with a reset
            values = {"rb": begin, "re": (begin, (0,) * c.KEYS)}
            kinds = ("claim", "active", "rb", "re")
            log += [Rec(0, kind, g, 1, 0, 0, values.get(kind, 0), 1, p + 10) for kind in kinds]
            pos.append((((1, p + 10),), (1, 0, begin, begin, 1, p + 10), NO, NO))
            truth.append(Truth(1, p, tuple(range(c.N)), top=(1, begin - 1)))
        nodes = []
        spares = c.budgets[5]
        for i in range(c.N + spares):
            up = i < c.N
            segs = tuple(
                Seg("o" if i == g % c.N else "b", 1, ((1, 0),), st=(0,) * c.KEYS, rf=pos[g][1][2], base=pos[g][1][3])
                if up
                else self.owners.empty
                for g in range(c.SEGS)
            )
            nodes.append(Node((i if up else 9) + 10, int(up), 0, 0, 0, 0, segs))
        none = ((),) * c.PARTS
        return World(tuple(nodes), tuple(map(tuple, logs)), none, tuple(pos), tuple(truth), c.budgets, 0)

    def steps(self, w: World) -> Iterator[WorldStep]:
        """Every possible step."""
        for i, n in enumerate(w.nodes):
            if not n.up:
                if left(w, "JOIN") and i < self.config.N:
                    newest = max(o.member for o in w.nodes if node_id(o.member) == node_id(n.member))
                    yield self.owners.restart(w, i, "JOIN", newest + 10)
                continue
            if n.fenced and any(m.role in LEADS for m in n.segs):
                yield self.lead.reinit(w, i)
            if n.truncated:
                for p in range(self.config.PARTS):
                    if n.truncated >> p & 1:
                        yield self.lead.look_at_ends(w, i, p)
            for g, m in enumerate(n.segs):
                if m.role in LEADS:
                    yield from self.lead.steps(w, i, g)
                elif not n.stale and w.truth[g].p >= 0:
                    yield from self.owners.back(w, i, g, m)
                yield from self.owners.prunes(w, i, g, m)
            yield from self.owners.faults(w, i)
        yield from self.kafka.steps(w)
        yield from self.owners.moves(w)

    def at_rest(self, w: World) -> str | None:
        """At rest a reader must derive the entries of the primary."""
        for g, t in enumerate(w.truth):
            if t.p < 0:
                continue
            n = w.nodes[t.p].segs[g]
            if n.role != "o":
                return f"V6 n{node_id(w.nodes[t.p].member)}, primary of s{g}, is stuck ({n.role})"
            records = self.kafka.records(w, g, 0, len(self.kafka.log(w, g)))
            entries, trouble = self._derived(w, g, records)
            if trouble:
                return f"{trouble} (s{g})"
            cache = tuple((k, v) for k, v in enumerate(n.st) if v)
            if self.config.FILTER:  # what is derived of such a key is the value before
                cache = tuple(e for e in cache if e[1] != self.config.FILTER)
                entries = tuple(e for e in entries if n.st[e[0]] != self.config.FILTER)
            if entries != cache:
                beyond = {(r.key, r.val) for r in records if r.kind == "op" and r.seq > end_of(n.hist, r.epoch)}
                what = "V4 phantom kept," if beyond & set(entries) else "V1"
                return f"{what} s{g}: derived {dict(entries)}, cache {dict(cache)}"
            if acked_in(w, g):
                return acked_in(w, g)
        return None

    def _derived(self, w: World, g: int, records: tuple[Rec, ...]) -> tuple[tuple[tuple[int, int], ...], str]:
        """The entries of a reader: one from the beginning or, if changes are compacted, one that starts now."""
        if not self.config.COMPACTKEYS:
            return self.shipped.derived(records)
        base = w.pos[g][1][3] if "base_offset" not in self.config.removed else 0
        numbered = tuple((x, r) for x, r in enumerate(self.kafka.log(w, g)) if r and r.seg == g)
        return self.shipped.derived_late(numbered, base, w.pos[g][2])
