"""What a user's subclass does that its capture would not see, found before it is captured.

The capture sees the calls of the object's own methods. A method of another name that calls `super().__delitem__(key)`,
or `cachetools.Cache.__delitem__(self, key)`, goes past them.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, Final

import cachetools

METHODS: Final = ("__setitem__", "__delitem__", "popitem", "clear", "expire")
"""Those that change a cache, and that a capture has in their place."""
_PAST: Final = ("__setitem__", "__delitem__", "clear", "expire")
"""Those of cachetools that change it and call none of its other methods."""
_CALL: Final = 6
"""Most instructions of `super(Class, self)`."""


def passes_by(kind: type[cachetools.Cache[Any, Any]]) -> str:
    """A method of a user's class, or of its bases, whose changes would not be seen, and what it calls; empty: none."""
    for owner in kind.__mro__:
        if owner.__module__ == cachetools.__name__ or not issubclass(owner, cachetools.Cache):
            continue
        for name, method in vars(owner).items():
            if isinstance(method, FunctionType) and name not in METHODS and name != "__init__":
                called = _past(method)
                if called:
                    return f"{owner.__name__}.{name}() calls {called}"
    return ""


def _past(method: FunctionType) -> str:
    for code in _codes(method.__code__):
        before: list[dis.Instruction] = []
        for one in dis.get_instructions(code):
            if one.argval in _PAST and one.opname.startswith("LOAD"):
                whose = _whose(one, before, method.__globals__)
                if whose:
                    return f"{whose}.{one.argval}()"
            before.append(one)
    return ""


def _whose(load: dis.Instruction, before: list[dis.Instruction], names: dict[str, Any]) -> str:
    """Whose method is loaded, where that is not the object's own."""
    if "SUPER" in load.opname or (before[-1].opname == "CALL" and "super" in [one.argval for one in before[-_CALL:]]):
        return "super()"
    written = [one.argval for one in before[-2:]]
    if before[-1].opname == "LOAD_ATTR" and names.get(written[0]) is cachetools:
        return f"{written[0]}.{written[1]}"
    value = names.get(written[-1]) if before[-1].opname == "LOAD_GLOBAL" else None
    return str(written[-1]) if isinstance(value, type) and issubclass(value, cachetools.Cache) else ""


def _codes(code: CodeType) -> Iterator[CodeType]:
    """That of a function, and those of the functions within it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)
