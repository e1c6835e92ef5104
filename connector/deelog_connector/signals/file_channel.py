"""The file of signals: read and emptied once per process, for all connectors that listen to it.

Each cache has a connector of its own, and all of them name the same file. Weighed in docs/decisions.md, "Signals in a
file".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

MAX_BYTES: Final = 1_048_576
"""A larger file is not read."""


class SignalFile:
    """Get it with `of`. Thread-safe."""

    _open: Final[WeakValueDictionary[Path, SignalFile]] = WeakValueDictionary()
    _opening: Final = threading.Lock()

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._unread: dict[object, list[bytes]] = {}
        """By listener, the lines that it has not read yet. Until all are read, the file is not: that bounds them."""
        self._torn: tuple[bytes, object] = b"", None
        """A last line without a line end, and the listener that saw it: taken if unchanged at its next look."""

    @classmethod
    def of(cls, path: Path) -> SignalFile:
        """The instance of this process for a path."""
        path = Path(os.path.realpath(path))  # as `resolve`, which raises for circular links
        with cls._opening:
            signal_file = cls._open.get(path)
            if signal_file is None:
                signal_file = cls._open[path] = cls(path)
            return signal_file

    @contextmanager
    def listening(self, listener: object) -> Iterator[None]:
        """Within the block, `lines(listener)` returns lines that are written from now on."""
        with self._lock:
            self._unread[listener] = []
        try:
            yield
        finally:
            with self._lock:
                del self._unread[listener]

    def lines(self, listener: object) -> list[bytes]:
        """Lines that this listener has not read, each once; without blank ones.

        Blocks while it reads. With an `OSError` it takes nothing. A line without a line end may be incomplete: it is
        left for the next call.
        """
        with self._lock:
            if listener not in self._unread:
                return []  # it left meanwhile: no listener, nothing is taken
            if not any(self._unread.values()):
                taken = self._take(listener)
                for unread in self._unread.values():
                    unread += taken
            lines, self._unread[listener] = self._unread[listener], []
            return lines

    def _take(self, listener: object) -> list[bytes]:
        try:
            # For writing too: signals that cannot be removed would be repeated with every look.
            file = self._path.open("r+b")
        except FileNotFoundError:
            return []
        with file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise OSError(f"has {size} bytes, and {MAX_BYTES} are allowed; it is not read")
            whole = file.read()
            lines = whole.splitlines()
            if whole and not whole.endswith(b"\n") and self._torn != (lines[-1], listener):
                seen, by = self._torn
                if seen != lines[-1] or by not in self._unread:
                    self._torn = lines[-1], listener
                return []
            self._torn = b"", None
            if os.fstat(file.fileno()).st_size != len(whole):
                return []  # it is being written to
            file.truncate(0)
        return [line for line in lines if line.strip()]
