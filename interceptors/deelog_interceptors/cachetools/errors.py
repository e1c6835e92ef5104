"""The errors of a captured write and of the capture itself.

DeelogError
├── NotCapturable (TypeError)    key or value is no text, no bytes, not serializable; the cache did not change
├── EntryTooLarge (ValueError)   above `max.entry.bytes` or a record's limit; the cache did not change
└── CaptureFailed                the connector cannot go on, or could not write everything at the end

The two bases are chosen for `@cached`: `@cached` takes a `ValueError` of a write for cachetools' "value too large" and
returns the value uncached. That is right for an entry too large to capture, but would hide a missing serializer.
"""

from __future__ import annotations

from deelog_schemas.errors import DeelogError


class NotCapturable(DeelogError, TypeError):
    """A key or value that cannot be captured as it is. Raised by the write, before the cache changed."""


class EntryTooLarge(DeelogError, ValueError):
    """Key and value are above `max.entry.bytes`, or do not fit into a record. Raised before the cache changed."""


class CaptureFailed(DeelogError):
    """Changes no longer reach Kafka; `Capture.failure` and `__cause__` say why. The next start repairs by a reset."""
