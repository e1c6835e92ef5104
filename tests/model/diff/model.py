"""The diff model as a space to search: an owner that writes, Kafka that compacts, a job that may stop at any step.

Between two steps all that the job knows is in its files or in Kafka, or is lost. So there is no separate crash step:
any step may be the last one of a process, and the next process continues from the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deelog_schemas.errors import RecordError
from deelog_spark.folding.by_records import ResetMismatch
from tests.model.diff import shipped
from tests.model.diff.state import Config, Job, Owner, Rec, World, WorldStep, left, put, use
from tests.model.explore import Step


class Diff:
    """The model in one configuration."""

    def __init__(self, config: Config) -> None:
        self.config, self.removed = config, config.removed

    def first(self) -> World:
        """Each segment begins with an empty reset; the job has not run yet."""
        c = self.config
        none = (0,) * c.KEYS
        log: list[Rec | None] = []
        owners = []
        for g in range(c.SEGS):
            owners.append(Owner(none, base=len(log)))
            log += [Rec("B", g, (1, 0), 0, len(log)), Rec("E", g, (1, 0), 0, (len(log), ()))]
        zero = none * c.SEGS
        refs = (zero,) * (len(log) + 1)
        return World(tuple(log), 0, tuple(owners), refs, Job(), zero, (), (0,) * len(zero), c.budgets)

    # -- the owner -------------------------------------------------------------------------------------------------

    def _append(self, w: World, g: int, rec: Rec, owner: Owner) -> World:
        """Appends a record. After a reset's end the reference reader has the cache's entries at the end's position."""
        content, keys = w.refs[-1], self.config.KEYS
        if rec.kind == "C" and owner.opened < 0 and not owner.again:
            content = put(content, rec.key, rec.val)
        elif rec.kind == "E":
            content = (*content[: g * keys], *owner.cache, *content[(g + 1) * keys :])
        return w._replace(log=(*w.log, rec), refs=(*w.refs, content), owners=put(w.owners, g, owner))

    def _write(self, w: World, g: int, key: int, value: int, epoch: int) -> World:
        o = w.owners[g]
        owner = o._replace(cache=put(o.cache, key, value), seq=o.seq + 1)
        number = g * self.config.KEYS + key
        w = self._append(w, g, Rec("C", g, (epoch, o.seq + 1), number, value), owner)
        return w if value else self._append(w, g, Rec("T", g, (epoch, o.seq + 1), number), owner)

    def _producer(self, w: World, g: int) -> Iterator[WorldStep]:
        o = w.owners[g]
        if o.again:
            owner = o._replace(again=o.again[1:])
            x = self._append(w, g, o.again[0], o)._replace(owners=put(w.owners, g, owner))
            yield Step("writes again", f"s{g}: {o.again[0].pos} again", x)
            return
        if o.opened >= 0:
            yield self._row(w, g, o) if o.rows else self._end(w, g, o)
        elif o.owed or o.asked or left(w, "RESETS"):
            alone = bool(o.owed or o.asked)
            owner = o._replace(
                opened=len(w.log),
                rows=tuple(k for k, v in enumerate(o.cache) if v),
                owed=0,
                asked=0,
                named=(o.epoch, o.seq, len(w.log)),
            )
            x = self._append(w if alone else use(w, "RESETS"), g, Rec("B", g, (o.epoch, o.seq), 0, len(w.log)), owner)
            yield Step("begins a reset", f"{len(w.log)}: s{g} begins a reset at {(o.epoch, o.seq)}", x, None, alone)
        if not o.owed:
            yield from self._clients(w, g, o)
        if left(w, "CLAIM"):
            owner = o._replace(epoch=o.epoch + 1, opened=-1, rows=(), owed=int(o.owed or o.opened >= 0))
            x = self._append(use(w, "CLAIM"), g, Rec("X", g, (o.epoch + 1, o.seq)), owner)
            yield Step("claims", f"{len(w.log)}: s{g} is claimed in epoch {o.epoch + 1}", x, None, False)
        if left(w, "LOSE") and o.opened < 0:
            for key in range(self.config.KEYS):
                for value in (0, self._value(w)) if o.cache[key] else (self._value(w),):
                    cache = put(o.cache, key, value)
                    owner = o._replace(cache=cache, epoch=o.epoch + 1, seq=o.seq + 1, owed=1)
                    x = use(w, "LOSE")._replace(owners=put(w.owners, g, owner))
                    yield Step("loses", f"s{g} loses k{key}={value} at {(o.epoch, o.seq + 1)}", x, None, False)

    def _value(self, w: World) -> int:
        return len(w.log) + 1

    def _clients(self, w: World, g: int, o: Owner) -> Iterator[WorldStep]:
        at, value = f"{len(w.log)}: s{g}", self._value(w)
        for key in range(self.config.KEYS):
            if left(w, "OPS"):
                x = self._write(use(w, "OPS"), g, key, value, o.epoch)
                yield Step("writes", f"{at} {(o.epoch, o.seq + 1)} k{key}={value}", x, None, False)
            if left(w, "DEL") and o.cache[key]:
                x = self._write(use(w, "DEL"), g, key, 0, o.epoch)
                yield Step("deletes", f"{at} {(o.epoch, o.seq + 1)} deletes k{key}", x, None, False)
            if left(w, "TAIL") and o.opened < 0:
                x = self._append(use(w, "TAIL"), g, Rec("X", g, (o.epoch + 1, o.seq)), o)
                x = self._write(x, g, key, value, o.epoch)
                x = x._replace(owners=put(x.owners, g, x.owners[g]._replace(epoch=o.epoch + 1)))
                words = f"{at} is claimed in epoch {o.epoch + 1}; {(o.epoch, o.seq + 1)} k{key}={value}"
                yield Step("writes an older epoch's", words, x, None, False)
        if left(w, "REPEAT") and o.opened < 0:
            changes = [r for r in w.log[o.base :] if r and r.seg == g and r.kind in "CT"]
            for first in range(len(changes)):
                owner = o._replace(again=tuple(changes[first:]))
                x = use(w, "REPEAT")._replace(owners=put(w.owners, g, owner))
                yield Step("repeats", f"s{g} is to write again from {changes[first].pos} on", x, None, False)

    def _row(self, w: World, g: int, o: Owner) -> WorldStep:
        key, owner = o.rows[0], o._replace(rows=o.rows[1:])
        if not o.cache[key]:
            return Step("row", f"s{g}: k{key} is gone", w._replace(owners=put(w.owners, g, owner)))
        rec = Rec("R", g, (o.epoch, o.seq), g * self.config.KEYS + key, o.cache[key])
        return Step("row", f"{len(w.log)}: s{g} row k{key}={rec.val}", self._append(w, g, rec, owner))

    def _end(self, w: World, g: int, o: Owner) -> WorldStep:
        live = tuple((g * self.config.KEYS + k, v) for k, v in enumerate(o.cache) if v)
        owner = o._replace(opened=-1, base=o.opened, named=())
        x = self._append(w, g, Rec("E", g, (o.epoch, o.seq), 0, (o.opened, live)), owner)
        return Step("ends a reset", f"{len(w.log)}: s{g} ends its reset at {(o.epoch, o.seq)}", x)

    # -- Kafka -----------------------------------------------------------------------------------------------------

    def _horizon(self, w: World) -> int:
        """Records from this offset on are younger than min.compaction.lag.ms, as long as the job is not stale."""
        job = w.job
        if "age" in self.removed or job.stale or (job.plan and self.config.PAUSE):
            return len(w.log)
        if not job.done:
            return int(job.plan[2]) if job.plan else len(w.log)
        end: int = job.done[2]
        begins: list[int] = [o[1] for _, _, o in job.done[3] if o and o[1] >= 0]
        return min([end, *begins])

    def _kafka(self, w: World) -> Iterator[WorldStep]:
        if left(w, "COMPACT"):
            for horizon in range(1, self._horizon(w) + 1):
                log = self._compacted(w, horizon)
                if log != w.log:
                    x = use(w, "COMPACT")._replace(log=log)
                    yield Step("compaction", f"compaction below {horizon}", x, None, False)
        if left(w, "RETAIN"):
            for head in range(w.head + 1, len(w.log) + 1):
                x = use(w, "RETAIN")._replace(head=head)
                yield Step("retention", f"the topic now begins at {head}", x, None, False)

    def _compacted(self, w: World, horizon: int) -> tuple[Rec | None, ...]:
        """Below the horizon only the latest record of each key stays, and none without a value."""
        seen, kept = set(), list(w.log)
        for offset in range(horizon - 1, -1, -1):
            rec = w.log[offset]
            if rec is None:
                continue
            if (rec.kind in "BEXT" and self.config.NULLS) or (rec.kind in "CTR" and rec.key in seen):
                kept[offset] = None
            if rec.kind in "CTR":
                seen.add(rec.key)
        return tuple(kept)

    # -- the job ---------------------------------------------------------------------------------------------------

    def _job(self, w: World) -> Iterator[WorldStep]:
        job = w.job
        if left(w, "SCRATCH") and job.run:
            yield Step("deletes", "the checkpoint is deleted", self._forgotten(use(w, "SCRATCH")), None, False)
        if left(w, "STALE") and job.done and job.done[2] < len(w.log):
            yield Step("stale", "the job stands still for long", self._with(use(w, "STALE"), stale=1), None, False)
        if job.stale and "stale" not in self.removed:
            yield Step("starts over", "its state is too old", self._forgotten(w))
        elif job.plan:
            yield from self._finish(w)
        elif not job.done:
            yield self._start(w)
        elif job.done[2] < w.head and "loss" not in self.removed:
            yield Step("starts over", "what it is to read is gone", self._forgotten(w))
        elif job.wal:
            yield self._batch(w)
        elif job.done[2] < len(w.log):
            for end in range(job.done[2] + 1, len(w.log) + 1):
                whole = end == len(w.log)
                if whole or left(w, "BATCH"):
                    x = self._with(w if whole else use(w, "BATCH"), wal=(job.done[1] + 1, end))
                    yield Step("cuts a batch", f"batch {job.done[1] + 1} is [{job.done[2]}, {end})", x, None, whole)
        if left(w, "WALLOST") and job.wal:
            yield Step(
                "wal lost",
                "Spark's note of the batch is lost",
                self._with(use(w, "WALLOST"), wal=(), plan=()),
                None,
                False,
            )

    def _with(self, w: World, **changes: Any) -> World:
        return w._replace(job=w.job._replace(**changes))

    def _forgotten(self, w: World) -> World:
        return self._with(w, done=(), plan=(), wal=(), stale=0)

    def _asked(self, w: World, segments: tuple[int, ...]) -> World:
        owners = tuple(o._replace(asked=1) if g in segments else o for g, o in enumerate(w.owners))
        return w._replace(owners=owners)

    def _start(self, w: World) -> WorldStep:
        based, named = "base" not in self.removed, "open_is_named" not in self.removed
        try:
            planned = shipped.plan_start(w, self.config.KEYS, based, named)
        except (RecordError, ResetMismatch) as error:
            return Step("plans a start", "the job starts without state", w, f"D5 the job cannot start: {error}"[:120])
        run = w.job.run + 1
        x = self._with(w, run=run, plan=(run, -1, len(w.log), planned.segments, planned.rows), wal=())
        words = f"the job starts without state, folds to {len(w.log)}: {_words(planned.rows)}"
        return Step("plans a start", words, self._asked(x, planned.asked))

    def _batch(self, w: World) -> WorldStep:
        run, _, begin, segments = w.job.done
        number, end = w.job.wal
        planned = shipped.plan_batch(w, self.config.KEYS, begin, end, segments)
        x = self._with(w, plan=(run, number, end, planned.segments, planned.rows))
        kind = "voids a reset" if planned.asked else "plans"
        return Step(kind, f"batch {number} is planned: {_words(planned.rows)}", self._asked(x, planned.asked))

    def _finish(self, w: World) -> Iterator[WorldStep]:
        """Writes the plan's rows, unless they are written already, and then the state."""
        run, number, end, segments, rows = w.job.plan
        done, floor = shipped.look(w.mark, run, number, end, number < 0)
        if not done:
            mine = tuple(r for r in rows if r[0] >= floor)
            x, bad = self._tell(w, mine)
            yield Step("tells", f"it tells {_words(mine)}", x._replace(mark=(run, max(end, floor))), bad)
            if "told_once" not in self.removed:
                return
        x = self._with(w, done=(run, number, end, segments), plan=(), wal=(), stale=0)
        yield Step("batch done", f"batch {number} is done", x)

    def _tell(self, w: World, rows: tuple[shipped.Row, ...]) -> tuple[World, str | None]:
        told, since = list(w.told), list(w.since)
        for _, key, value in rows:
            if value and value == told[key]:
                return w, f"D1 k{key}={value} is told twice"
            true = next((y for y in range(since[key], len(w.refs)) if w.refs[y][key] == value), None)
            if true is None:
                return w, f"D2 k{key}={value} was never true since what was told before"
            told[key], since[key] = value, true
        return w._replace(told=tuple(told), since=tuple(since)), None

    # -- the space -------------------------------------------------------------------------------------------------

    def steps(self, w: World) -> Iterator[WorldStep]:
        """Every possible step."""
        for g in range(self.config.SEGS):
            yield from self._producer(w, g)
        yield from self._kafka(w)
        yield from self._job(w)

    def at_rest(self, w: World) -> str | None:
        """At rest the diff topic must have the same entries as the caches."""
        caches = tuple(v for o in w.owners for v in o.cache)
        if any(o for _, _, o in w.job.done[3]):
            return "D4 a segment stays held back"
        return None if w.told == caches else f"D3 told {w.told}, the cache holds {caches}"


def _words(rows: tuple[shipped.Row, ...]) -> str:
    return ", ".join(f"k{key}={value or '-'}" for _, key, value in rows) or "nothing"
