"""Who obeys a field, and how much it matters, in one word each."""

from __future__ import annotations

from deelog_schemas.config.field import Importance, Role

HIGH, LOW = Importance.HIGH, Importance.LOW
NODE = frozenset({Role.NODE, Role.CONNECTOR})
DIFF_ONLY = frozenset({Role.DIFF})
WITH_CACHE = frozenset({Role.NODE, Role.DIFF})
