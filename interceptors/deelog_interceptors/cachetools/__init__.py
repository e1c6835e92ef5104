"""Change data capture for caches of cachetools in one process.

    import threading, cachetools
    import deelog_interceptors.cachetools as deelog

    sessions, lock = cachetools.TTLCache(10_000, ttl=600), threading.RLock()
    with deelog.capture(sessions, "sessions.properties", lock=lock):
        ...

The way of a change: `intercept` (a class for the one cache, whose writes are checked and noted), `serialize` (what is
kept of keys and values), `change_queue` (one queue), `mirror` (positions, op log, and what a reset reads), `runner`
(the connector on the loop of its `ConnectorThread`). `captures` has several of them. Names are absolute everywhere:
`import cachetools` is the library.
"""

from deelog_interceptors.cachetools.capture import Capture, capture
from deelog_interceptors.cachetools.captures import Captures
from deelog_interceptors.cachetools.errors import CaptureFailed, EntryTooLarge, NotCapturable

__all__ = ["Capture", "CaptureFailed", "Captures", "EntryTooLarge", "NotCapturable", "capture"]
