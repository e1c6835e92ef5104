"""A connector beside one server: reads its stream, asks what the stream does not say, and writes what is its to write.

It is of one database; `databases.py` has several. Everything on one asyncio loop. The rules are those of `capture.py`;
this carries them out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import Final

from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.kafka_port import KafkaPort
from deelog_connector.runtime import Connector
from deelog_interceptors.redis import reading
from deelog_interceptors.redis.address import Address
from deelog_interceptors.redis.capture import Capture
from deelog_interceptors.redis.client import Client, Reply
from deelog_interceptors.redis.commands import touching
from deelog_interceptors.redis.hints import Hints
from deelog_interceptors.redis.lineage import Lineage, told
from deelog_interceptors.redis.link import Link, LinkError, LinkLost, Place, attach
from deelog_interceptors.redis.metrics import RedisMetrics
from deelog_interceptors.redis.segment_tape import Image
from deelog_interceptors.redis.sentinels import Sentinels
from deelog_interceptors.redis.shard import Remembered, others
from deelog_interceptors.redis.stream import Arguments, Omitted, StreamError
from deelog_interceptors.redis.tape import Tape, unknown_of
from deelog_interceptors.redis.values import Values
from deelog_interceptors.redis.view import View
from deelog_schemas.config import Config
from deelog_schemas.member import Member

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.2
_ROLE_SECONDS: Final = 0.1
"""How often the server is asked whether it is primary, and what its replicas have."""
_WAITING_SECONDS: Final = 0.01
"""The same while changes wait for that."""
_SENTINEL_SECONDS: Final = 0.5
"""How often the Sentinels are asked."""
_HEAR_AGAIN_SECONDS: Final = 5.0
_HURRY_SECONDS: Final = 0.005
"""Of what a replica reads in this time its primary hears together."""
_ACK_SECONDS: Final = 0.5
"""Redis' own replicas do it each second."""
_FIRST_POSITION_SECONDS: Final = 5.0
"""In which who has claimed a segment writes a position of it, as a rule."""
_STOP_SECONDS: Final = 30.0
_LONGEST_PAUSE: Final = 30.0
"""Seconds between two warnings of a primary that is none any more."""
_MOST_SLOTS: Final = 256
"""Of which the keys are listed at once: they are in memory meanwhile."""
_MOST_TRIES: Final = 3
"""Of another server of the shard that breaks a link, before what the own one has forgotten is given up."""
_MOST_LOOKED_UP: Final = 10_000
"""Arguments of a command of which the server is asked for the keys: it answers a quarter of a million in a second."""
_NOWHERE: Final = Lineage((("", 0),))


class RedisNode:
    """`await start()`, watch `failure`, `await stop()`."""

    def __init__(self, config: Config, new_port: Callable[[], KafkaPort] = Librdkafka, *, after: str = "") -> None:
        """`after` is an earlier process of this node, whose clock may have been ahead. Raises `ConfigError`."""
        self.address, self.cache = Address.of(config), str(config["cache.name"])
        self._segments, self._max_bytes = config["segment.count"], config["max.entry.bytes"]
        self.values = Values(config)
        self._acks_all = config["cache.acks"] == "all"
        self._always = config["redis.writer"] == "any"
        """Whether it writes beside a replica, too."""
        port = new_port()
        self.clock = port.clock
        self.member = str(Member.starting(config["node.id"], self.clock.time_ns(), after))
        self.capture = Capture(self.member, self._tape(Place(_NOWHERE, 0, 0)))
        self.connector = Connector(config, self.member, self.capture, connector_name="redis", port=port)
        self.capture.sink = self.connector.sink
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.serves = False
        """Whether it has read of the server."""
        self.sentinels = Sentinels.of(config)
        self._hints = Hints(self.address) if config["redis.reasons"] == "notifications" else None
        self._client = Client(self.address)
        self._looking_up = Client(self.address)
        self._looked_up: set[bytes | Omitted] = set()
        """The names of commands of which the server has said which keys they write."""
        self._link: Link | None = None
        self._tries = Counter[Address]()
        """How often other servers of the shard were read, or were to be, since something came last."""
        self._is_elsewhere = False
        """Whether the server was found to have another stream than the one that is read."""
        self._cluster = False
        self._view: View | None = None
        self._warn_at = 1
        self._claims_at: float | None = None
        self._rows_at = 0.0
        """When the next rows may be read."""
        self._due, self._moved, self._has_read = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._hurried: asyncio.TimerHandle | None = None
        self.capture.changed = self._changed
        self._tasks: list[asyncio.Task[None]] = []
        self.metrics = RedisMetrics(self, config["topic.prefix"], config["cache.name"])

    @property
    def is_attached(self) -> bool:
        """Whether the server's stream is being read."""
        return self._link is not None

    def _tape(self, place: Place) -> Tape:
        captured = self.address.database
        return Tape(place.lineage, place.offset, place.database, captured, self._segments, self.values)

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns once the server's stream is read. Raises `DeelogError`."""
        await self.connector.start()
        self.connector.failure.add_done_callback(self._connector_failed)
        if self.sentinels is not None:
            await self.sentinels.look()
        await self._attach_when_possible()
        self.serves = True
        for work in (self._follow(), self._ask(), self._watch(), self._consult(), self._hear()):
            task = asyncio.ensure_future(work)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Writes what was read, and releases the segments."""
        self.connector.end()
        until, offset = self.clock.monotonic() + _STOP_SECONDS, self.capture.tape.offset
        while not self.failure.done() and self.capture.waits(offset):
            if self.clock.monotonic() > until:
                log.warning("Kafka did not take all that was read: the next start goes on from there")
                break
            await asyncio.sleep(_ROLE_SECONDS)
        await self._end(release=not self.failure.done())

    async def abort(self) -> None:
        await self._end(release=False)

    async def _end(self, release: bool) -> None:
        if self._hurried is not None:
            self._hurried.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._link is not None:
            await self._link.close()
        await self._client.close()
        await self._looking_up.close()
        for other in (self.sentinels, self._hints):
            if other is not None:
                await other.close()
        await self.connector.stop(release)

    def failed(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)

    def _connector_failed(self, failure: asyncio.Future[None]) -> None:
        if not failure.cancelled() and (error := failure.exception()) is not None:
            self.failed(error)

    # -- the stream -----------------------------------------------------------------------------------------------

    async def _attach_when_possible(self) -> None:
        """Attaches, however long that takes. Raises `LinkError`."""
        said = ""
        while True:
            try:
                return await self._attach()
            except LinkLost as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("%s: %s; trying again", self.address, said)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _attach(self) -> None:
        """Goes on where the tape ends, else where Kafka's knowledge does, else where the stream is now."""
        if self._link is not None:
            await self._link.close()
            self._link = None
        client = Client(self.address)
        try:
            await client.connect()
            await self._attach_by(client)
        finally:
            await client.close()

    async def _attach_by(self, client: Client) -> None:
        info = reading.replication_in(self.address, await client.ask_one(b"INFO", b"replication"))
        has = Remembered.of(info)
        self._cluster = reading.is_cluster(await client.ask_one(b"INFO", b"cluster"))
        reading.must_fit(self.address, self._cluster, self._segments)
        tape = self.capture.tape
        is_known = tape.offset <= has.lineage.shared(tape.lineage)
        view = self.capture.view if is_known else (await self._told_by(client, goes_on=False)).view

        def place(oldest: int) -> Place | None:
            """Where to go on with a stream that begins there."""
            if is_known:
                return Place(tape.lineage, tape.offset, tape.database)
            known = self.capture.resumes_at(has.lineage, view, oldest)
            return None if known is None else Place(has.lineage, *known)

        wanted, link = place(0), None
        if wanted is not None and wanted.offset < has.oldest:
            link, wanted = await self._link_to_another(info, has, place), place(has.oldest)
        if link is None:
            link = await self._link_to(self.address, wanted)
        goes_on = link.continues and is_known
        try:
            view = (await self._told_by(client, goes_on)).view
            if not link.continues:  # the server may have been promoted since it was asked
                now = reading.replication_in(self.address, await client.ask_one(b"INFO", b"replication"))
                link.comes_after(told(now))
        except BaseException:
            await link.close()
            raise
        self._link = link
        if goes_on:
            self.capture.goes_on_as(link.place.lineage)
        else:
            log.info("%s: reads from offset %d on", self.address, link.place.offset)
            self.capture.replaced(self._tape(link.place), link.continues)
        if not goes_on or view != self._view:
            self._take(view)

    async def _link_to(self, address: Address, wanted: Place | None) -> Link:
        return await attach(address.connect, wanted, self._max_bytes, address.username, address.password)

    async def _link_to_another(
        self, info: Mapping[str, str], has: Remembered, place: Callable[[int], Place | None]
    ) -> Link | None:
        """A link to another server of the shard that has what this one has forgotten, up to where both have it."""
        for other in await others(self.address, info, has):
            wanted = place(other.oldest)
            tries = self._tries[other.address]
            if tries >= _MOST_TRIES or wanted is None or not other.oldest <= wanted.offset < has.oldest:
                continue
            self._tries[other.address] = _MOST_TRIES
            try:
                link = await self._link_to(other.address, wanted)
            except (LinkError, LinkLost) as error:
                log.warning("%s: %s", other.address, error)
                if isinstance(error, LinkLost) and tries + 1 < _MOST_TRIES:
                    self._tries[other.address] = tries + 1
                    raise
                continue
            if link.continues:
                self._tries[other.address] = tries + 1
                forgotten = "%s has forgotten what comes behind offset %d (repl-backlog-size): %s has it"
                log.warning(forgotten, self.address, wanted.offset, other.address)
                link.ends_at(other.upto, has.lineage.after(wanted.lineage))
                return link
            await link.close()
        return None

    def _take(self, view: View, again: Set[int] = frozenset()) -> None:
        """What the server is primary of, the connector writes; `again`: claimed by somebody else meanwhile."""
        before = self._view
        if before is None or before.is_primary != view.is_primary:
            log.info("%s is %s", self.address, "primary" if view.is_primary else "a replica")
        elif view.writes != before.writes:
            came, went = len(view.writes - before.writes), len(before.writes - view.writes)
            log.info("%s: %d slots came, %d went or move", self.address, came, went)
        self._view = view
        self.capture.take(view, again)
        self._changed()
        self._wake()

    async def _follow(self) -> None:
        """Reads the stream, and attaches again where it ends."""
        while True:
            assert self._link is not None
            try:
                commands = await self._link.read()
                await self._look_up(commands)
            except LinkLost as error:
                log.warning("%s: %s", self.address, error)
                self.capture.unheard()  # the stream may not come as far as what is heard
                await self._attach_when_possible()
                continue
            except StreamError as error:
                raise LinkError(f"{self.address} sends what is no replication stream: {error}") from error
            self._tries.clear()
            self.capture.fed(commands, self.clock.time_ns() // 1000)
            self._has_read.set()
            if not self._acks_all and not self._cluster:
                self.capture.acknowledged(self.capture.tape.offset)
            self._warn()
            self._wake()
            if not self._writes and self._hurried is None:
                self._hurried = asyncio.get_running_loop().call_later(_HURRY_SECONDS, self._hurry)
            # A server drops who reads too slowly, and keeps the stream for a while.
            while self.capture.is_full() and not self._is_elsewhere:
                self._moved.clear()
                await self._moved.wait()
            self._is_elsewhere = False

    async def _look_up(self, commands: list[tuple[Arguments, int]]) -> None:
        """Puts what the server says of them in the place of commands that are not known. Raises `LinkLost`."""
        places = [place for place in unknown_of(commands) if len(commands[place][0]) <= _MOST_LOOKED_UP]
        if not places:
            return
        client = self._looking_up
        try:
            if not client.is_connected:
                await client.connect()
            told = await reading.keys_written(client, [commands[place][0] for place in places])
        except LinkLost:
            await client.close()
            raise
        for place, keys in zip(places, told, strict=True):
            given, offset = commands[place]
            if keys is not None:
                commands[place] = touching(keys, self.address.database), offset
                if given[0] not in self._looked_up:
                    self._looked_up.add(given[0])
                    log.info("%r is not known: the server is asked which keys it writes", given[0])

    def _hurry(self) -> None:
        self._hurried = None
        if self._link is not None:
            self._link.hurry()

    @property
    def _writes(self) -> bool:
        return self._view is not None and self._view.is_primary

    def _warn(self) -> None:
        """Says once for all, and again at each ten times as many, what cannot be captured."""
        passed_over = self.capture.tape.passed_over
        if passed_over >= self._warn_at:
            self._warn_at = 10 * passed_over
            log.warning(
                "%d changes are not captured: their keys are reserved, longer than max.entry.bytes, or no text "
                "(cache.key.format=bytes takes any)",
                passed_over,
            )

    def _changed(self) -> None:
        self._due.set()
        self._moved.set()

    def _wake(self) -> None:
        self._due.set()
        self.connector.wake()

    # -- questions ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Looks at what is the server's and what its replicas have, and tells it that the link lives."""
        acked_at = 0.0
        client = Client(self.address)
        try:
            while True:
                await self._pause(lambda: self.capture.acked)
                tape, link = self.capture.tape, self._link
                read = tape.offset
                try:
                    if not client.is_connected:
                        await client.connect()
                    view, role, ends = await self._told_by(client)
                    if self.capture.is_full() or (link is not None and link.is_bounded):
                        name, _ = await reading.place(client)
                        self._check(tape, name)
                except LinkLost:
                    await client.close()
                    continue
                if self._link is None or self._link is not link:
                    continue  # it is of before this one, which has asked as well
                again = self._claims_again()
                if view != self._view or again:
                    self._take(view, again)
                if view.is_primary and (self._acks_all or self._cluster):
                    self.capture.acknowledged(self._acked(role, read))
                    self._wake()
                now = self.clock.monotonic()
                if now - acked_at >= _ACK_SECONDS:
                    acked_at = now
                    # A primary that ends waits for all that it takes for replicas.
                    shows = (ends or not view.is_primary) and not self._link.is_bounded
                    self._link.acknowledge(self.capture.tape.offset if shows else 0)
        finally:
            await client.close()

    async def _told_by(self, client: Client, goes_on: bool = True) -> reading.Told:
        """`goes_on`: with the tape that there is."""
        writes = goes_on and self._view is not None and bool(self._view.writes)
        return await reading.told_by(client, self._segments, self._cluster, self.sentinels, writes, self._always)

    async def _consult(self) -> None:
        """Asks the Sentinels, if there are any, who is primary."""
        while self.sentinels is not None:
            await asyncio.sleep(_SENTINEL_SECONDS)
            await self.sentinels.look()

    async def _hear(self) -> None:
        """Hears why keys go, if that is wanted. Where it does not, nothing else is lost."""
        said = ""
        while self._hints is not None:
            try:
                await self._heard(self._hints)
            except (LinkLost, LinkError) as error:
                self.capture.unheard()
                if str(error) != said:
                    said = str(error)
                    log.warning("%s; keys that go are told as `remove` until it does", said)
                await asyncio.sleep(_HEAR_AGAIN_SECONDS)

    async def _heard(self, hints: Hints) -> None:
        """Until the stream is another one, or nothing is heard any more."""
        capture, begin = self.capture, await hints.open()
        if hints.lacks:
            log.warning("%s: %s", self.address, hints.lacks)
        capture.hears(begin)
        while capture.heard_at is not None:
            await self._pause(lambda: capture.heard_at or 0)
            capture.heard(*await hints.look())
            self.connector.wake()

    async def _pause(self, done: Callable[[], int]) -> None:
        """Until the server is to be asked again: soon where changes wait for it, or will, behind that offset."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ROLE_SECONDS):
                while not self._writes or self.capture.tape.offset <= done():
                    self._has_read.clear()
                    await self._has_read.wait()
        await asyncio.sleep(_WAITING_SECONDS)

    def _acked(self, role: Reply, read: int) -> int:
        """What is to be written, where the stream was read up to `read` before a primary was asked for its role.

        In a cluster no more than that: a key that goes to another node is deleted in the stream, and the view behind
        that tells that its slot moves.
        """
        offsets = [offset for _, port, offset in reading.replicas_of(role) if port] if self._acks_all else []
        acked = min(offsets, default=reading.offset_of(role))
        return min(acked, read) if self._cluster else acked

    def _claims_again(self) -> Set[int]:
        """The segments to claim again that somebody else has claimed, though they are this server's.

        That one may have been late. Or it is beside a server that has become their primary after this one, which lives
        on: its positions say so, once it has written some, and be it those of idle segments.
        """
        now, outranked, sentinels = self.clock.monotonic(), self.capture.outranked, self.sentinels
        if not outranked:
            self._claims_at = None
            return frozenset()
        if sentinels is not None and not sentinels.agreeing:
            return frozenset()
        if not self.capture.view.is_primary:  # it writes all the same, until somebody else does
            return frozenset()
        if self._claims_at is None:
            heartbeat = self.connector.config["heartbeat.interval.ms"] / 1000
            self._claims_at = now + min(heartbeat, _FIRST_POSITION_SECONDS) + 1
        if now < self._claims_at:
            return frozenset()
        if sentinels is None and self.capture.is_superseded():
            self._claims_at = now + _LONGEST_PAUSE
            log.warning("%s says that it is primary, but another one was promoted after it", self.address)
            return frozenset()
        self._claims_at = None
        return frozenset(outranked)

    async def _ask(self) -> None:
        """Asks the server what the capture is to know."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                if not self._client.is_connected:
                    await self._client.connect()
                await self._answer()
            except LinkLost as error:
                log.info("%s", error)  # who follows the stream warns
                await self._client.close()
                await asyncio.sleep(_RETRY_SECONDS)
                self._due.set()

    async def _answer(self) -> None:
        """Until nothing is asked for. Changes and rows take turns: neither waits for all of the other."""
        while True:
            had_changes = await self._read_changes()
            if resets := self.capture.segments_to_read(_MOST_SLOTS if self._cluster else self._segments):
                await self._read_rows(resets)
            elif not had_changes:
                return

    async def _read_changes(self) -> bool:
        """Something that is asked for, but the rows of resets; whether there was anything."""
        capture = self.capture
        capture.progress()
        tape = capture.tape
        if capture.wants_offset:
            name, offset = await reading.place(self._client)
            self._check(tape, name)
            capture.offset_is(offset)
        elif places := capture.keys_to_read(reading.MOST_KEYS):
            await self._read_keys(places)
        else:
            return False
        self.connector.wake()
        return True

    async def _may_read(self, rows: int) -> None:
        """Waits until so many more rows may be read."""
        limit = self.connector.config["redis.read.keys.per.second"]
        had_changes = await self._read_changes()
        while limit and (left := self._rows_at - self.clock.monotonic()) > 0:
            if not had_changes:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._due.wait(), left)
                self._due.clear()
            had_changes = await self._read_changes()
        if limit:
            self._rows_at = self.clock.monotonic() + rows / limit

    def _check(self, tape: Tape, name: str) -> None:
        """Raises `LinkLost` where what was read is not of the stream that is read now."""
        if self.capture.tape is not tape or tape.lineage.id != name:
            # Where the tape is full of what waits for that one, only the end of the link makes room.
            self._is_elsewhere = True
            self._moved.set()
            if self._link is not None and self._link.is_bounded:  # another server's, which goes on with this one
                self._link.end()
            raise LinkLost(f"{self.address} goes on with another stream")

    async def _read_keys(self, places: list[tuple[int, bytes]]) -> None:
        capture = self.capture
        tape, segments = capture.tape, {key: segment for segment, key in places}
        try:
            found = await self._read(tape, list(segments))
        except LinkLost:
            if capture.tape is tape:
                capture.images_read([], places)
            raise
        images = [(segments[image.key], image) for image in found.images]
        capture.images_read(images, [(segments[key], key) for key in found.changed])

    async def _read(self, tape: Tape, keys: list[bytes]) -> reading.Read:
        found = await reading.read(self._client, keys, self.values, self._cluster)
        if found.images:
            self._check(tape, found.id)
        else:  # their slots go, and the view will say so
            await asyncio.sleep(_ROLE_SECONDS)
        return found

    async def _read_rows(self, resets: dict[int, str]) -> None:
        capture = self.capture
        tape = capture.tape
        found = await reading.keys_of(
            self._client, resets.keys(), self._segments, self.values, self._cluster, between=self._read_changes
        )
        name, listed = await reading.place(self._client)
        self._check(tape, name)
        for together in reading.batches(found):
            images: dict[int, list[Image]] = {segment: [] for segment in together}
            keys = {key: segment for segment in together for key in found[segment]}
            left = list(keys)
            while left and any(capture.wants_rows(segment, resets[segment]) for segment in together):
                some = left[-reading.MOST_KEYS :]
                del left[-reading.MOST_KEYS :]
                await self._may_read(len(some))
                part = await self._read(tape, some)
                for image in part.images:
                    images[keys[image.key]].append(image)
                # The keys of a slot that has gone meanwhile stay changed, and hold up nobody once the view says so.
                left += [key for key in part.changed if capture.wants_rows(keys[key], resets[keys[key]])]
            for segment in together:
                capture.rows_read(segment, resets[segment], images[segment], listed)
            self.connector.wake()
