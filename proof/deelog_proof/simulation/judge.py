"""What a run tells of itself: a trace, its digest, and the first thing that is wrong."""

from __future__ import annotations

import hashlib
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from typing import Final

from deelog_proof.memory.engine import Engine

MAX_TRACE: Final = 100_000


class Violation(Exception):
    """A broken invariant; `part` names it."""

    def __init__(self, part: str, text: str) -> None:
        super().__init__(f"{part}: {text}")
        self.part = part


class Judge(ABC):
    """Raises nothing: `violation` keeps the first violation, and the run ends."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.violation: Violation | None = None
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        self._hash = hashlib.sha256()

    @abstractmethod
    def sample(self) -> None:
        """Checks what holds at any time."""

    @abstractmethod
    def settled(self) -> str | None:
        """What the run still waits for; None once it is at rest."""

    @abstractmethod
    def final(self) -> None:
        """Checks what must hold once the run is at rest."""

    def say(self, line: str) -> None:
        """Adds a line to the trace, which is hashed and shown in a scenario's golden output."""
        text = f"{self._engine.now:8.4f} {line}"
        self._hash.update(text.encode())
        if len(self.trace) < MAX_TRACE:
            self.trace.append(text)

    @property
    def digest(self) -> str:
        """The hash of the trace, the replies and the times of all events so far."""
        digest = self._hash.copy()
        digest.update(f"{self._engine.steps} {self._engine.order}".encode())
        return digest.hexdigest()

    def fail(self, part: str, text: str) -> None:
        """Keeps the first violation."""
        if self.violation is None:
            self.violation = Violation(part, text)
            self.say(f"VIOLATION {part}: {text}")

    def broken(self, text: str, error: BaseException) -> None:
        """An unexpected exception."""
        where = "".join(traceback.format_exception(error)[-3:])
        self.fail("broken", f"{text}\n{where}")
