"""Dead letters: changes that a transform failed on, as they were captured, on a topic of their own.

A dead letter is written in the transaction that leaves its change out, so each is there once, with its reason in
Connect's headers (docs/proof.md has the limit: a partition of letters that loses its leader). Values are as captured,
so a value that a transform should mask is readable there: give the topic the ACLs of the cache itself. The names are
those of the diff job's dead letters, which may share the topic.
"""

from __future__ import annotations

from deelog_connector.kafka_port import OutRecord
from deelog_connector.transforms.pipeline import DeadLetter
from deelog_schemas.config import Config
from deelog_schemas.envelope import Codec, Stamp
from deelog_schemas.header import HEADER_NAME, Kind, pack
from deelog_schemas.operation import Operation


class DeadLetterEncoder:
    """Encodes the dead letters of one cache."""

    def __init__(self, config: Config) -> None:
        self._topic: str = config["errors.deadletterqueue.topic.name"]
        self._changes, self._connector = config.topics.changes, config["name"]

    def record(
        self, letter: DeadLetter, codec: Codec, segment: int, partition: int, node: int, stamp: Stamp
    ) -> OutRecord:
        """The dead letter of a change or row."""
        captured = letter.captured
        if isinstance(captured, Operation):
            header = pack(Kind.CHANGE, segment, *captured.position, node)
            value = codec.change(captured, stamp)
        else:
            header = pack(Kind.READ, segment, *letter.position, node)
            value = codec.row(captured, letter.position, "true", letter.reason, stamp)
        headers: list[tuple[str, str | bytes | None]] = [(HEADER_NAME, header)]
        context = {
            "topic": self._changes,
            "partition": partition,
            "connector.name": self._connector,
            "stage": "TRANSFORMATION",
            "class.name": letter.step,
            "exception.class.name": letter.kind,
            "exception.message": letter.error,
        }
        headers += [(f"__connect.errors.{name}", str(value)) for name, value in context.items()]
        return OutRecord(self._topic, 0, codec.key(captured.key), value, headers)
