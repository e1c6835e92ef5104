"""The file of signals: read and emptied once per process, whatever number of connectors listens to it.

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
"""A larger file is left alone."""


class SignalFile:
    """Get it with `of`. Thread-safe."""

    _open: Final[WeakValueDictionary[Path, SignalFile]] = WeakValueDictionary()
    _opening: Final = threading.Lock()

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._unread: dict[object, list[bytes]] = {}
        """By listener, what it has not asked for yet. While anything is here the file waits: that bounds it."""
        self._torn: tuple[bytes, object] = b"", None
        """The end of the file that has no line end, and who saw it: taken when it is still so one look of his later."""

    @classmethod
    def of(cls, path: Path) -> SignalFile:
        """The one of this process."""
        path = Path(os.path.realpath(path))  # as `resolve`, which raises for links in a ring
        with cls._opening:
            found = cls._open.get(path)
            if found is None:
                found = cls._open[path] = cls(path)
            return found

    @contextmanager
    def listening(self, listener: object) -> Iterator[None]:
        """While within, `lines(listener)` gives what is written into the file from now on."""
        with self._lock:
            self._unread[listener] = []
        try:
            yield
        finally:
            with self._lock:
                del self._unread[listener]

    def lines(self, listener: object) -> list[bytes]:
        """Lines that this listener has not had, and none of them twice; blank ones are left out.

        Blocks while it reads. Raises `OSError`: nothing is taken then. A line without an end may be half written: it
        is left for the next look.
        """
        with self._lock:
            if listener not in self._unread:
                return []  # it has gone meanwhile: nothing is taken for nobody
            if not any(self._unread.values()):
                taken = self._take(listener)
                for unread in self._unread.values():
                    unread += taken
            lines, self._unread[listener] = self._unread[listener], []
            return lines

    def _take(self, listener: object) -> list[bytes]:
        try:
            # For writing too: what cannot be taken out would be done again with every look.
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
                return []  # somebody adds to it just now
            file.truncate(0)
        return [line for line in lines if line.strip()]
