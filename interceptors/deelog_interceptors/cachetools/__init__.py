"""Change data capture for caches of cachetools in one process.

    import threading, cachetools
    import deelog_interceptors.cachetools as deelog

    sessions, lock = cachetools.TTLCache(10_000, ttl=600), threading.RLock()
    with deelog.capture(sessions, "sessions.properties", lock=lock):
        ...

A change passes through: `intercept` (a subclass for the one cache, which checks and records writes), `telling` (what a
call has changed, however it ended), `serialize` (keys and values as text or bytes), `change_queue` (one queue),
`mirror` (positions, op log, and what a reset reads), `runner` (the connector on the loop of its `ConnectorThread`).
`subclasses` finds what would not be seen, `captures` holds several captures. All imports are absolute: `import
cachetools` is the library.
"""

from deelog_interceptors.cachetools.capture import Capture, capture
from deelog_interceptors.cachetools.captures import Captures
from deelog_interceptors.cachetools.errors import CaptureFailed, EntryTooLarge, NotCapturable

__all__ = ["Capture", "CaptureFailed", "Captures", "EntryTooLarge", "NotCapturable", "capture"]
