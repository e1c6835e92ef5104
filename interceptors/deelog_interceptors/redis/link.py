"""The link to one server: its replication stream from a place on, as a replica that can never be elected.

It names no port, so that nobody takes it for a server, and acknowledges nothing on a primary, so that no WAIT counts it
and no FAILOVER chooses it. What a server has forgotten comes as a snapshot; it is asked for one without keys, since
keys are read as they are needed.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import hiredis

from deelog_interceptors.redis.lineage import Lineage, told
from deelog_interceptors.redis.snapshot import SnapshotError, stream_database
from deelog_interceptors.redis.stream import Arguments, Stream
from deelog_schemas.errors import DeelogError

Connect: TypeAlias = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]

_MOST_OF_A_SNAPSHOT: Final = 1 << 20
"""Without keys and functions it has some 200 bytes."""
_MARK_BYTES: Final = 40
_PIECE: Final = 1 << 16
ANSWER_SECONDS: Final = 10.0
"""How long a server may take to let a link attach."""
SILENCE_SECONDS: Final = 60.0
"""A server pings its replicas every `repl-ping-replica-period` seconds, ten by default."""
_LATER: Final = re.compile("(LOADING|NOMASTERLINK|MASTERDOWN|BUSY|TRYAGAIN) |ERR max number of clients")
"""How refusals begin that end by themselves."""


class LinkError(DeelogError):
    """A server does not give its stream, and trying again does not help."""


class LinkLost(DeelogError):
    """There is no link, or no longer: another one may be tried."""


@dataclass(frozen=True, slots=True)
class Place:
    """Up to where a stream was read, and in which database the next command is."""

    lineage: Lineage
    offset: int
    database: int


class Link:
    """A stream that is being read. `attach` makes it; `close` ends it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: Place, continues: bool, max_bytes: int
    ) -> None:
        self.place = place
        """Where it begins."""
        self.continues = continues
        """Whether that is the place that was asked for, so that nothing is missing."""
        self._reader, self._writer = reader, writer
        self._stream = Stream(place.offset, max_bytes)
        self._end: int | None = None

    def ends_at(self, offset: int, lineage: Lineage) -> None:
        """What it has up to there is that lineage's, too, and is read as such. Behind it the link is lost."""
        self.place, self._end = replace(self.place, lineage=lineage), offset

    def comes_after(self, lineage: Lineage) -> None:
        """What the server tells of itself now: what its stream has been before."""
        self.place = replace(self.place, lineage=self.place.lineage.after(lineage))

    @property
    def is_bounded(self) -> bool:
        """Whether it ends somewhere."""
        return self._end is not None

    async def read(self) -> list[tuple[Arguments, int]]:
        """The next commands, each with the offset behind it. Raises `LinkLost`, and `StreamError`."""
        while self._end is None or self._stream.offset < self._end:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    data = await self._reader.read(_PIECE)
            except TimeoutError as error:
                raise LinkLost(f"the server has sent nothing for {SILENCE_SECONDS:.0f} s") from error
            except OSError as error:
                raise broken("the link broke", error) from error
            if not data:
                raise LinkLost("the server closed the link")
            commands = self._stream.feed(data)
            if self._end is not None:
                commands = [command for command in commands if command[1] <= self._end]
            if commands:
                return commands
        raise LinkLost(f"what was missing up to offset {self._end} is read")

    def acknowledge(self, offset: int) -> None:
        """Tells the server up to where its stream was taken; 0 tells only that this end lives.

        A server drops a link that says nothing for `repl-timeout`, and sends nothing behind a snapshot before that.
        """
        self._writer.write(packed(("REPLCONF", "ACK", str(offset))))

    def hurry(self) -> None:
        """Lets a replica tell its primary at once up to where it has the stream; by itself it does so each second."""
        self._writer.write(packed(("REPLCONF", "GETACK", "*")))

    def end(self) -> None:
        """What is being read is lost."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Ends the link."""
        self.end()


async def attach(
    connect: Connect, wanted: Place | None, max_bytes: int, user: str | None = None, password: str | None = None
) -> Link:
    """Attaches to a server, at the place that is wanted if the server still has it, else where its stream is now.

    Raises `LinkError` with a remedy, and `LinkLost`.
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS) as limit:
            reader, writer = await connect()
            try:
                return await _attached(reader, writer, wanted, max_bytes, user, password, limit)
            except BaseException:
                writer.transport.abort()
                raise
    except TimeoutError as error:
        raise LinkLost(f"the server has not answered for {ANSWER_SECONDS:.0f} s") from error
    except OSError as error:
        raise broken("the server does not answer", error) from error
    except asyncio.IncompleteReadError as error:
        # What a server says of a client's certificate seldom comes through.
        asks = "does it want TLS (rediss:// in redis.url), or a certificate (redis.ssl.certificate.location)?"
        raise LinkLost(f"the server closed the link while it was made: {asks}") from error
    except (asyncio.LimitOverrunError, ValueError, KeyError) as error:
        raise LinkError(f"this is no Redis or Valkey server: {error!r}") from error


async def _attached(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    wanted: Place | None,
    max_bytes: int,
    user: str | None,
    password: str | None,
    limit: asyncio.Timeout,
) -> Link:
    async def ask(*words: str) -> bytes:
        writer.write(packed(words))
        return await _reply(reader, words[0], user, limit)

    if password is not None:
        await ask("AUTH", *([user] if user else []), password)
    info = fields(await ask("INFO", "replication"))
    cluster = fields(await ask("INFO", "cluster")).get("cluster_enabled") == "1"
    lineage, now = told(info), int(info["master_repl_offset"])
    await ask("REPLCONF", "capa", "eof", "capa", "psync2")
    await ask("REPLCONF", "rdb-filter-only", "")
    # Without an address no Sentinel lists this link: it would be a replica of port 0 for them, down for ever.
    await ask("REPLCONF", "ip-address", "")
    place = Place(lineage, now, 0) if wanted is None and cluster else wanted  # a cluster has one database
    if place is not None and place.offset <= min(now, lineage.shared(place.lineage)):
        answer = await ask("PSYNC", lineage.id, str(place.offset + 1))
    else:
        answer = await ask("PSYNC", "?", "-1")
    kind, *rest = answer.decode().split()
    if kind == "CONTINUE" and place is not None:
        if rest and rest[0] != lineage.id:  # promoted since INFO; it has at least what it goes on from
            lineage = Lineage((*lineage.ids, (rest[0], place.offset)))
        return Link(reader, writer, replace(place, lineage=lineage.after(place.lineage)), True, max_bytes)
    if kind != "FULLRESYNC" or len(rest) != 2:
        raise LinkError(f"PSYNC was answered with {answer!r}")
    database = await _snapshot(reader, cluster, limit)
    begin = Place(Lineage(((rest[0], 0),)).after(lineage), int(rest[1]), database)
    return Link(reader, writer, begin, False, max_bytes)


async def _snapshot(reader: asyncio.StreamReader, cluster: bool, limit: asyncio.Timeout) -> int:
    """Reads over the snapshot; the database of the stream behind it."""
    header = await _line(reader, limit)
    if header.startswith(b"$EOF:") and len(header) == len("$EOF:") + _MARK_BYTES:
        data = await reader.readuntil(header[5:])
    elif header[:1] == b"$" and header[1:].isdigit() and int(header[1:]) <= _MOST_OF_A_SNAPSHOT:
        data = await reader.readexactly(int(header[1:]))
    else:
        raise LinkError(f"a snapshot without keys was asked for, and {header!r} came")
    try:
        return 0 if cluster else stream_database(data)
    except SnapshotError as error:
        raise LinkError(str(error)) from error


async def _line(reader: asyncio.StreamReader, limit: asyncio.Timeout) -> bytes:
    while not (line := (await reader.readuntil(b"\n")).rstrip(b"\r\n")):
        # A sign of life: the server waits for more replicas (`repl-diskless-sync-delay`), or for another snapshot.
        limit.reschedule(asyncio.get_running_loop().time() + ANSWER_SECONDS)
    return line


async def _reply(reader: asyncio.StreamReader, command: str, user: str | None, limit: asyncio.Timeout) -> bytes:
    line = await _line(reader, limit)
    kind, text = line[:1], line[1:]
    if kind == b"$" and text.isdigit():
        return (await reader.readexactly(int(text) + 2))[:-2]
    if kind in (b"+", b":"):
        return text
    if kind != b"-":
        raise LinkError(f"this is no Redis or Valkey server: {command} was answered with {line[:80]!r}")
    raise _refusal(command, text.decode(errors="replace"), user or "default")


def broken(what: str, error: Exception) -> DeelogError:
    """What the end of a connection means: `LinkError` where TLS does not come about, else `LinkLost`."""
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "name its authority in redis.ssl.ca.location, and the host in redis.url as its certificate does"
        return LinkError(f"{what}: its certificate does not count ({error.verify_message}): {remedy}")
    if "ALERT" in reason:
        remedy = "it may ask for a certificate that it knows: set redis.ssl.certificate.location"
        return LinkError(f"{what}: it refuses TLS with this one ({reason}): {remedy}")
    return LinkLost(f"{what}: {str(error) or 'no answer in time'}")


def refusal(what: str, error: object) -> DeelogError:
    """What a question's error means: `LinkLost` where it ends by itself, else `LinkError`."""
    kind = LinkLost if _LATER.match(str(error)) else LinkError
    return kind(f"{what}: {error}")


def _refusal(command: str, text: str, user: str) -> DeelogError:
    if _LATER.match(text):
        return LinkLost(text)
    match text.partition(" ")[0]:
        case "NOAUTH":
            return LinkError(f"the server asks for a password: set redis.password, and redis.username ({text})")
        case "WRONGPASS":
            return LinkError(f"redis.username or redis.password is wrong ({text})")
        case "NOPERM":
            return LinkError(
                f"the user {user} may not {command}: ACL SETUSER {user} +psync +replconf +ping +info, and what "
                f"docs/redis.md lists ({text})"
            )
        case _ if command == "PSYNC" or "unknown command" in text:
            return LinkError(
                f"the server does not give its replication stream, as managed services do not: {command} was refused "
                f"({text})"
            )
    return LinkError(f"{command} was refused: {text}")


def packed(words: Sequence[str | bytes]) -> bytes:
    """A command as it is sent."""
    return hiredis.pack_command(tuple(words))  # type: ignore[arg-type, no-any-return]  # its stub has tuples of one


def fields(info: bytes) -> Mapping[str, str]:
    """What INFO answers, by name."""
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, separator, value in lines if separator}
