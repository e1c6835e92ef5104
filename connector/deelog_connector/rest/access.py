"""Who may ask for what, decided from a request's headers alone.

- With tokens: `Authorization: Bearer …`, compared in constant time. The one for reading may look and change nothing.
- Without: every client that can connect may do everything. That is this machine alone, or clients with a certificate.
- A web page in somebody's browser can send requests to this machine, too. It always says where it comes from
  (`Origin`, `Sec-Fetch-Site`) when it changes something, and a name that it has pointed at this machine (DNS rebinding)
  is in `Host`: both are refused where there is no token that the page could not know.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from typing import Final

from deelog_connector.rest.entities import RestError
from deelog_schemas.config import Config
from deelog_schemas.errors import ConfigError, FieldError

MIN_TOKEN: Final = 16
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="deelog"'}
_SCHEME: Final = "bearer "


class Access:
    """The tokens are kept as digests: a dump of the process holds them nowhere else."""

    def __init__(self, config: Config) -> None:
        self._all = _digest(config, "rest.token")
        self._reading = _digest(config, "rest.readonly.token")
        if self._all is not None and self._all == self._reading:
            raise ConfigError([FieldError("rest.readonly.token", "must not be the same as rest.token")])

    @property
    def asks(self) -> bool:
        """Whether a token is asked for."""
        return self._all is not None

    def check(self, headers: Mapping[str, str], changes: bool, is_open: bool) -> None:
        """Raises `RestError`. Header names in lower case."""
        if self._all is not None:
            if not is_open:
                self._check_token(self._all, headers, changes)
            return
        if not _is_address(headers.get("host", "")):
            raise RestError(403, "The Host header must be an address or localhost where no token is asked for")
        if changes and not _from_here(headers):
            raise RestError(403, "Pages of other sites may not change anything")

    def _check_token(self, everything: bytes, headers: Mapping[str, str], changes: bool) -> None:
        given = headers.get("authorization", "")
        if given[: len(_SCHEME)].lower() != _SCHEME:
            raise RestError(401, "A token is needed: Authorization: Bearer …", _CHALLENGE)
        digest = hashlib.sha256(given[len(_SCHEME) :].strip().encode("latin-1", "replace")).digest()
        # Both, always: how long it takes says nothing about which was nearly right.
        may_all = hmac.compare_digest(digest, everything)
        may_look = hmac.compare_digest(digest, self._reading or everything)
        if not (may_all or may_look):
            raise RestError(401, "The token is not right", _CHALLENGE)
        if changes and not may_all:
            raise RestError(403, "This token may look and change nothing")


def _digest(config: Config, name: str) -> bytes | None:
    token = config.secret(name)
    if token is None:
        return None
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or token != token.strip():
        problem = f"must be at least {MIN_TOKEN} printable ASCII characters without blanks around them"
        raise ConfigError([FieldError(name, problem)])
    return hashlib.sha256(token.encode()).digest()


def _is_address(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
    if name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _from_here(headers: Mapping[str, str]) -> bool:
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")
