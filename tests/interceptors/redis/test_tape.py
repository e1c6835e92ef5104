"""The tape against a server and a Kafka in memory: random commands, reads, acknowledgements, losses and takeovers."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from deelog_interceptors.redis.lineage import Lineage
from deelog_interceptors.redis.segment_tape import Image
from deelog_interceptors.redis.source import Anchor, decode_source, encode_source
from deelog_interceptors.redis.stream import Arguments
from deelog_interceptors.redis.tape import Tape
from deelog_schemas.keys import segment_of
from deelog_schemas.operation import Reason

KEYS = [b"", b"a", b"b", b"c", b"d"]
SEGMENTS = 2


@dataclass
class Server:
    """A stream of commands of database 0, and what each left. A value is the number of its key's version."""

    id: str = "one"
    ids: tuple[tuple[str, int], ...] = (("one", 0),)
    commands: list[tuple[Arguments, int]] = field(default_factory=list)
    states: list[dict[bytes, bytes]] = field(default_factory=lambda: [{}])

    @property
    def end(self) -> int:
        return self.commands[-1][1] if self.commands else 0

    def count(self, offset: int) -> int:
        """How many commands there are up to an offset."""
        return sum(end <= offset for _, end in self.commands)

    def at(self, offset: int) -> dict[bytes, bytes]:
        return self.states[self.count(offset)]

    def run(self, arguments: Arguments, value: bytes) -> None:
        state = dict(self.states[-1])
        match arguments[0]:
            case b"FLUSHDB":
                state.clear()
            case b"DEL":
                for key in arguments[1:]:
                    state.pop(key, None)  # type: ignore[arg-type]
            case b"MSET":
                state.update(zip(arguments[1::2], arguments[2::2], strict=True))  # type: ignore[arg-type]
            case b"RENAME":
                state.pop(arguments[1], None)  # type: ignore[arg-type]
                state[arguments[2]] = value  # type: ignore[index]
            case _:
                state[arguments[1]] = value  # type: ignore[index]
        self.states.append(state)
        self.commands.append((arguments, self.end + 40))


@dataclass
class Record:
    epoch: int
    sequence: int
    reason: str
    key: bytes
    value: bytes | None


@dataclass
class Kafka:
    """One segment's records, and its last position."""

    records: list[Record] = field(default_factory=list)
    position: tuple[int, int, str] | None = None
    rows: dict[bytes, bytes] = field(default_factory=dict)
    """Those of the last reset, behind which are the records."""
    told: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Every value that was ever written, rows too."""
    reset_to: int = 0
    """The version of the last command before the end of the last reset."""

    def fold(self) -> dict[bytes, bytes]:
        state = dict(self.rows)
        for record in self.records:
            if record.reason == Reason.CLEAR:
                state.clear()
            elif record.value is None:
                state.pop(record.key, None)
            else:
                state[record.key] = record.value
        return state


class Sink:
    """The connector's part in the takeover, and its op log."""

    def __init__(self, kafka: list[Kafka], chance: random.Random) -> None:
        self.kafka, self.chance = kafka, chance
        self.epoch = 0
        self.log: list[list[Record]] = [[] for _ in kafka]
        self.last = [0 for _ in kafka]
        self.past: list[list[tuple[int, int]]] = [[] for _ in kafka]

    def has_room(self, size: int) -> bool:
        return self.chance.random() < 0.9

    def last_sequence(self, segment: int) -> int:
        return self.last[segment]

    def append(
        self,
        segment: int,
        reason: str,
        key: bytes,
        value: bytes | None,
        expires_at: int | None,
        ts_us: int,
        existed: bool,
        *,
        skipped: int = 0,
    ) -> None:
        self.last[segment] += 1 + skipped
        self.log[segment].append(Record(self.epoch, self.last[segment], reason, key, value))

    def acked(self, segment: int, sequence: int) -> None:
        assert sequence == self.last[segment]


class World:
    def __init__(self, seed: int, acks_all: bool) -> None:
        self.chance, self.acks_all = random.Random(seed), acks_all
        self.server, self.version = Server(), 0
        self.kafka = [Kafka() for _ in range(SEGMENTS)]
        self.standby = Tape(Lineage(self.server.ids), 0, 0, 0, SEGMENTS, bytes, whole=True)
        self.replicated = 0
        self.epoch = 0
        self.resets = self.forks = self.starts = self.corrections = 0
        self.reads: list[tuple[int, list[bytes] | None, list[Image]]] = []
        self.take_over(Tape(Lineage(self.server.ids), 0, 0, 0, SEGMENTS, bytes, whole=True))

    # -- what happens ---------------------------------------------------------------------------------------------

    def command(self) -> None:
        self.version += 1
        key, value = self.chance.choice(KEYS), b"%d" % self.version
        arguments: Arguments
        match self.chance.randrange(12):
            case 0:
                arguments = [b"DEL", key, self.chance.choice(KEYS)]
            case 1:
                arguments = [b"MSET", b"a", value, b"b", value, b"c", value]
            case 2:
                arguments = [b"RENAME", key, self.chance.choice([other for other in KEYS if other != key])]
            case 3 if self.chance.random() < 0.2:
                arguments = [b"FLUSHDB"]
            case 4 | 5 | 6:
                arguments = [b"SET", key, value]
            case _:
                arguments = [b"INCR", key]
        self.server.run(arguments, value)

    def feed(self, tape: Tape, upto: int) -> None:
        tape.feed([each for each in self.server.commands if tape.offset < each[1] <= upto], 1)

    def ask(self) -> None:
        """Reads keys of a segment as they are now."""
        segment = self.chance.randrange(SEGMENTS)
        keys = self.tape.segments[segment].wanted()
        if keys:
            state = self.server.states[-1]
            images = [Image(key, state.get(key), None, self.server.end) for key in self.chance.sample(keys, len(keys))]
            self.reads.append((segment, None, images))

    def answer(self) -> None:
        if self.reads:
            segment, _, images = self.reads.pop(0)
            self.feed(self.tape, max(image.offset for image in images))
            for image in images:
                self.tape.segments[segment].place(image)

    def hand_over(self) -> None:
        for segment, tape in enumerate(self.tape.segments):
            if tape.is_open:
                acked = min(self.replicated, self.tape.offset) if self.acks_all else self.tape.offset
                tape.hand_over(segment, acked, self.sink)

    def commit(self) -> None:
        """Some of what was handed over, by one transaction; its positions may be read later, or never."""
        for segment in self.chance.sample(range(SEGMENTS), SEGMENTS):
            log, kafka, tape = self.sink.log[segment], self.kafka[segment], self.tape.segments[segment]
            number = self.chance.randint(0, len(log))
            if not number:
                continue
            batch = log[:number]
            del log[:number]
            sequence = batch[-1].sequence
            source = self.tape.source(segment, sequence, self.sink.past[segment])
            assert decode_source(encode_source(source)) == source
            kafka.records += batch
            kafka.told += [(record.key, record.value) for record in batch if record.value is not None]
            kafka.position = self.epoch, sequence, encode_source(source)
            low = source.low, source.database
            if self.chance.random() < 0.8:
                tape.prune(source.end)
                if self.chance.random() < 0.8:
                    self.standby.position_read(segment, source)
            self.low = low

    low = 0, 0

    # -- takeovers ------------------------------------------------------------------------------------------------

    def take_over(self, tape: Tape) -> None:
        """The protocol's part: claims and fences are taken as done, and this is READ and DECIDE."""
        self.tape, self.epoch, self.reads = tape, self.epoch + 1, []
        self.sink = Sink(self.kafka, self.chance)
        self.sink.epoch = self.epoch
        self.feed(tape, self.server.end)
        for segment, kafka in enumerate(self.kafka):
            one = tape.segments[segment]
            if kafka.position is None:
                if not one.whole or one.begin or kafka.records:
                    self.reset(segment)
                    continue
                one.open(Anchor(0, 0), 0, {})
                continue
            epoch, sequence, text = kafka.position
            source = decode_source(text)
            counted = tape.counted(segment, source)
            if counted is None:
                self.reset(segment)
                continue
            anchor, end = counted
            history = {**dict(source.past), epoch: end}
            known = [r for r in kafka.records if r.sequence <= history.get(r.epoch, -1)]
            written = max([r.sequence for r in known], default=anchor.sequence)
            phantoms, beyond = set[bytes](), False
            for record in kafka.records:
                if record.sequence <= history.get(record.epoch, -1):
                    phantoms.discard(record.key)
                    if record.reason == Reason.CLEAR:
                        phantoms.clear()
                elif record.reason == Reason.CLEAR:
                    beyond = True  # a clear is written as a reset
                else:
                    phantoms.add(record.key)
            if beyond or written < anchor.sequence:
                self.reset(segment)
                continue
            self.sink.last[segment] = written
            self.sink.past[segment] = [*source.past, (epoch, written)]
            one.open(anchor, written, source.later)
            before = len(one.waiting)
            one.correct({*phantoms, *source.later})
            self.corrections += len(one.waiting) - before

    def reset(self, segment: int) -> None:
        """A reset, during which commands come; keys are read one by one."""
        tape = self.tape.segments[segment]
        kafka = self.kafka[segment]
        tape.drop(self.tape.offset)
        self.sink.last[segment] = last = max([self.sink.last[segment], *(r.sequence for r in kafka.records)])
        keys = [key for key in self.server.states[-1] if segment_of(key, SEGMENTS) == segment]
        images = []
        for key in keys:
            for _ in range(self.chance.randrange(3)):
                self.command()
            images.append(Image(key, self.server.states[-1].get(key), None, self.server.end))
        self.feed(self.tape, self.server.end)
        self.replicated = self.server.end  # rows are written once they are acknowledged
        self.feed(self.standby, self.server.end)
        rows = tape.take_rows(images, last)
        kafka.rows, kafka.records = {row.key: row.value for row in rows}, []
        kafka.told += [(row.key, row.value) for row in rows]
        kafka.reset_to = self.version
        self.resets += 1
        source = self.tape.source(segment, last, [])
        kafka.position = self.epoch, last, encode_source(source)
        tape.prune(source.end)
        self.sink.past[segment] = []

    def crash(self) -> None:
        """The connector ends; another one begins where the stream's last changes are not in Kafka, or anywhere."""
        if self.chance.random() < 0.7:
            place = self.low
            self.take_over(Tape(Lineage(self.server.ids), *place, 0, SEGMENTS, bytes, whole=True))
        else:
            self.starts += 1
            self.take_over(Tape(Lineage(self.server.ids), self.server.end, 0, 0, SEGMENTS, bytes))

    def fail_over(self) -> None:
        """The primary is lost with what is not replicated; the standby's server goes on."""
        self.forks += 1
        fork, old = self.replicated, self.server
        number, name = old.count(fork), f"id{self.epoch}"
        ids = (*old.ids, (name, fork))
        self.server = Server(name, ids, old.commands[:number], old.states[: number + 1])
        self.low = self.low if self.low[0] <= fork else (fork, 0)
        tape = self.standby
        tape.lineage = Lineage(ids)
        self.standby = Tape(Lineage(ids), fork, 0, 0, SEGMENTS, bytes)
        for _ in range(self.chance.randrange(4)):
            self.command()
        self.take_over(tape)

    def follow(self) -> None:
        """The primary is restarted with less than it had, and keeps its connector."""
        self.forks += 1
        fork, old = self.replicated, self.server
        number, name = old.count(fork), f"id{self.epoch}"
        ids = (*old.ids, (name, fork))
        self.server = Server(name, ids, old.commands[:number], old.states[: number + 1])
        self.low = self.low if self.low[0] <= fork else (fork, 0)
        self.tape.fork(Lineage(ids), min(fork, self.tape.offset), 0)
        self.standby.lineage = Lineage(ids)
        self.take_over(self.tape)

    def replicate(self) -> None:
        self.replicated = self.chance.choice([self.replicated, *(e for _, e in self.server.commands[-5:])])
        self.feed(self.standby, self.replicated)
        self.replicated = max(self.replicated, self.standby.offset)

    def settle(self) -> None:
        self.replicated = self.server.end
        self.feed(self.tape, self.server.end)
        for _ in range(200):
            for segment, tape in enumerate(self.tape.segments):
                state = self.server.states[-1]
                for key in tape.wanted():
                    tape.place(Image(key, state.get(key), None, self.server.end))
            self.hand_over()
            self.commit()
            if not any(tape.waiting for tape in self.tape.segments) and not any(self.sink.log):
                return
        raise AssertionError("it does not come to rest")

    def play(self) -> None:
        acts = [self.command] * 8 + [self.ask, self.answer, self.hand_over, self.commit, self.replicate] * 2
        acts += [lambda: self.feed(self.tape, self.server.end)] * 2
        rare = [self.crash, self.fail_over, self.follow]
        for _ in range(120):
            self.chance.choice(acts if self.chance.random() < 0.96 else rare)()
        self.settle()


def sets(server: Server, segment: int) -> list[tuple[bytes, bytes]]:
    """What the commands that carry values have set in a segment, in order."""
    found = []
    for arguments, _ in server.commands:
        if arguments[0] in (b"SET", b"MSET"):
            found += zip(arguments[1::2], arguments[2::2], strict=True)
    return [(k, v) for k, v in found if segment_of(k, SEGMENTS) == segment]  # type: ignore[arg-type, misc]


@pytest.mark.parametrize("acks_all", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_kafka_becomes_what_the_server_has(seed: int, acks_all: bool) -> None:
    for part in range(25):
        world = World(1000 * seed + part, acks_all)
        world.play()
        for segment, kafka in enumerate(world.kafka):
            place = seed, part, segment
            expected = {k: v for k, v in world.server.states[-1].items() if segment_of(k, SEGMENTS) == segment}
            assert kafka.fold() == expected, place
            positions = [(record.epoch, record.sequence) for record in kafka.records]
            assert positions == sorted(set(positions)), place
            told = set(kafka.told)
            missing = [
                each for each in sets(world.server, segment) if each not in told and int(each[1]) > kafka.reset_to
            ]
            assert not missing, place
            if not world.forks or acks_all:
                for key in KEYS:
                    versions = [int(value) for one, value in kafka.told if one == key]
                    assert versions == sorted(versions), (place, key)
        if not world.starts and not world.forks:
            assert not world.resets
            assert not world.corrections
