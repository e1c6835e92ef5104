"""Secrets: which names have secret values, the syntax of references, and containers that print masked.

A value is secret by its field's type or by its name (Debezium's list, and librdkafka's additions).
The value of an unknown name is never shown, since the name may be a misspelt secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "********"
_SHOWN = 80

_SECRET_NAME = re.compile(
    r".*(secret|password|passphrase|token|sasl\.jaas\.config|basic\.auth\.user\.info|credentials\.json"
    r"|connectionstring|connection\.string|sasl\.oauthbearer\.config|\.pem|key\.string"
    r"|sasl\.username)",
    re.IGNORECASE | re.DOTALL,
)
# user:password@host, and the parameters that drivers accept in an address.
_SECRET_INSIDE = re.compile(r"@|(password|passwd|pwd|secret|token|key)=", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{([A-Za-z0-9_-]+):([^{}]*)\}")


def is_secret(name: str) -> bool:
    """True where the values under `name` are masked."""
    return _SECRET_NAME.fullmatch(name) is not None


def hides(name: str, text: str) -> bool:
    """Whether `text` under `name` is a secret or contains one."""
    return is_secret(name) or _SECRET_INSIDE.search(text) is not None


def references(text: str) -> list[re.Match[str]]:
    """The `${provider:…}` references in a value: group 1 is the provider, group 2 its argument."""
    return list(_REFERENCE.finditer(text))


def shown(name: str, text: str) -> str:
    """`text` as an error or a log line may show it: masked, or quoted and cut to 80 characters."""
    if hides(name, text):
        return MASK
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


class Secret:
    """A value that prints as `********`. `reveal()` returns the text as configured, references unresolved."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


class Masked(dict[str, Any]):
    """A dict that contains secrets but prints them as `********`."""

    __slots__ = ("hidden",)

    def __init__(self, values: Mapping[str, Any], hidden: frozenset[str] = frozenset()) -> None:
        super().__init__(values)
        self.hidden = hidden

    def __repr__(self) -> str:
        shown = {
            k: MASK if k in self.hidden or hides(k, v if isinstance(v, str) else "") else v for k, v in self.items()
        }
        return repr(shown)

    __str__ = __repr__

    def __reduce__(self) -> tuple[type[Masked], tuple[dict[str, Any], frozenset[str]]]:
        return type(self), (dict(self), self.hidden)
