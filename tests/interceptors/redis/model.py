"""A server in memory: its stream of commands, and what each left."""

from __future__ import annotations

from dataclasses import dataclass, field

from deelog_interceptors.redis.lineage import Lineage
from deelog_interceptors.redis.stream import Arguments
from deelog_schemas.keys import segment_of

KEYS = [b"", b"a", b"b", b"c", b"d"]


class Plain:
    """All keys are captured, and a string is its own value."""

    def accepts(self, key: bytes) -> bool:
        return True

    def string(self, key: bytes, value: bytes) -> bytes:
        return value


@dataclass
class Server:
    """Its commands are of database 0. `ids` is its lineage."""

    ids: tuple[tuple[str, int], ...] = (("one", 0),)
    commands: list[tuple[Arguments, int]] = field(default_factory=list)
    states: list[dict[bytes, bytes]] = field(default_factory=lambda: [{}])

    @property
    def lineage(self) -> Lineage:
        return Lineage(self.ids)

    @property
    def end(self) -> int:
        return self.commands[-1][1] if self.commands else 0

    @property
    def state(self) -> dict[bytes, bytes]:
        return self.states[-1]

    def of(self, segment: int, segments: int) -> dict[bytes, bytes]:
        """The entries of a segment."""
        return {key: value for key, value in self.state.items() if segment_of(key, segments) == segment}

    def between(self, offset: int, upto: int) -> list[tuple[Arguments, int]]:
        """The commands behind an offset, up to another."""
        return [each for each in self.commands if offset < each[1] <= upto]

    def run(self, arguments: Arguments, value: bytes) -> None:
        """Carries a command out; one without a value leaves `value`."""
        state = dict(self.state)
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

    def replica(self, upto: int) -> Server:
        """One that has its stream up to there."""
        number = len(self.between(0, upto))
        return Server(self.ids, self.commands[:number], self.states[: number + 1])

    def promoted(self, name: str, upto: int) -> Server:
        """The same, which is primary from now on."""
        other = self.replica(upto)
        other.ids = (*self.ids, (name, other.end))
        return other
