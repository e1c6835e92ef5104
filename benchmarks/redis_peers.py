"""What people build themselves: the changes of a cluster's servers by two readers, each with a producer.

    python -m benchmarks.redis_peers stream|notifications BOOTSTRAP TOPIC FOLDER PORT...

`stream` reads the replication stream of each primary, as replication tools do: it goes on behind the offset that it has
noted in FOLDER, of its primary's successor, too, if that has the stream; else the entries that there are come as SETs.
It notes an offset once all up to there is delivered. `notifications` asks for the value of each key of which a
keyspace event tells. Both have a record for each change, by key; a delete is a tombstone. They know SET and DEL.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from redis import Redis
from redis.exceptions import RedisError

from benchmarks.common import quiet
from deelog_connector.devkafka.ports import HOST
from deelog_interceptors.redis.stream import Stream

_NOTE_SECONDS = 0.5
_AGAIN_SECONDS = 0.1
_FLUSH_SECONDS = 30.0
_LONGEST = 1 << 20


class Peer:
    """What both share: the servers, and the topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings: dict[str, Any] = {**quiet(bootstrap), "enable.idempotence": True, "linger.ms": 5}
        self._producer, self._topic = Producer({**settings, "queue.buffering.max.messages": 1_000_000}), topic

    def send(self, key: bytes, value: bytes | None) -> None:
        """One record; None is a tombstone."""
        self._producer.produce(self._topic, value, key)
        self._producer.poll(0)

    def flush(self) -> None:
        """All of it is delivered."""
        assert self._producer.flush(_FLUSH_SECONDS) == 0, "Kafka does not take what is sent"

    def follow(self, port: int) -> None:
        """The server at that port, for as long as it is a primary, again and again."""
        while True:
            try:
                with Redis(host=HOST, port=port, socket_timeout=5.0) as client:
                    if client.info("replication")["role"] == "master":
                        self.read(client, port)
            except (RedisError, OSError, EOFError):  # it is away
                pass
            time.sleep(_AGAIN_SECONDS)

    def read(self, client: Redis, port: int) -> None:
        raise NotImplementedError


class StreamPeer(Peer):
    """`notes`: by replication id the offset up to which all is delivered."""

    def __init__(self, bootstrap: str, topic: str, folder: Path) -> None:
        super().__init__(bootstrap, topic)
        self._file, self._lock = folder / "offsets.json", threading.Lock()
        self._notes: dict[str, int] = json.loads(self._file.read_text()) if self._file.exists() else {}

    def _note(self, id_: str, offset: int) -> None:
        self.flush()
        with self._lock:
            self._notes[id_] = offset
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(self._notes))
            new.replace(self._file)

    def read(self, client: Redis, port: int) -> None:
        info = client.info("replication")
        ids = (info["master_replid"], info["master_replid2"])
        known = next(((id_, self._notes[id_]) for id_ in ids if id_ in self._notes), ("?", -2))
        with socket.create_connection((HOST, port), 5.0) as link:
            link.sendall(f"PSYNC {known[0]} {known[1] + 1}\r\n".encode())
            answer, rest = _line(link, b"")
            words = answer.split()
            if words[0] == b"+CONTINUE":
                id_, offset = (words[1].decode() if len(words) > 1 else known[0]), known[1]
            else:
                id_, offset = words[1].decode(), int(words[2])
                rest = _without_snapshot(link, rest)
                for key in client.scan_iter(count=1000):
                    value: Any = client.get(key)
                    self.send(key, value)
            self._commands(link, Stream(offset, _LONGEST), id_, rest)

    def _commands(self, link: socket.socket, stream: Stream, id_: str, data: bytes) -> None:
        noted = time.monotonic()
        while True:
            for arguments, _ in stream.feed(data):
                match arguments[0]:
                    case b"SET":
                        self.send(arguments[1], arguments[2])  # type: ignore[arg-type]  # none is omitted
                    case b"DEL" | b"UNLINK":
                        for key in arguments[1:]:
                            self.send(key, None)  # type: ignore[arg-type]
            if time.monotonic() - noted > _NOTE_SECONDS:
                self._note(id_, stream.offset)
                link.sendall(b"*3\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$1\r\n0\r\n")
                noted = time.monotonic()
            data = b""
            if select.select([link], [], [], _NOTE_SECONDS)[0]:
                data = link.recv(1 << 18)
                if not data:
                    raise EOFError


class NotificationsPeer(Peer):
    """Asks for what the events tell of, some hundred keys at a time."""

    def read(self, client: Redis, port: int) -> None:
        client.config_set("notify-keyspace-events", "KEA")
        server: Any = client
        events = server.pubsub(ignore_subscribe_messages=True)
        events.psubscribe("__keyevent@0__:*")
        while True:
            keys = list(_keys(events))
            pipeline: Any = client.pipeline(transaction=False)
            for key in keys:
                pipeline.get(key)
            for key, value in zip(keys, pipeline.execute(), strict=True):
                self.send(key, value)


def _keys(events: Any) -> Iterator[bytes]:
    """Those of the events that have come, at most some hundred, once there are any."""
    message = events.get_message(timeout=1.0)
    for _ in range(500):
        if message is None:
            return
        yield message["data"]
        message = events.get_message(timeout=0.0)


def _line(link: socket.socket, data: bytes) -> tuple[bytes, bytes]:
    """The next line that is not empty, and what came behind it."""
    while True:
        data = data.lstrip(b"\n")
        line, end, rest = data.partition(b"\r\n")
        if end:
            return line, rest
        more = link.recv(1 << 16)
        if not more:
            raise EOFError
        data += more


def _without_snapshot(link: socket.socket, data: bytes) -> bytes:
    """What is behind the snapshot."""
    head, data = _line(link, data)
    size = int(head[1:])
    while len(data) < size:
        more = link.recv(1 << 18)
        if not more:
            raise EOFError
        data += more
    return data[size:]


def main() -> None:
    """See the module."""
    kind, bootstrap, topic, folder, *ports = sys.argv[1:]
    peer = StreamPeer(bootstrap, topic, Path(folder)) if kind == "stream" else NotificationsPeer(bootstrap, topic)
    threads = [threading.Thread(target=peer.follow, args=(int(port),), daemon=True) for port in ports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
