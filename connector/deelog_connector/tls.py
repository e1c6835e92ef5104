"""TLS by the files that a configuration names.

`<names>.certificate.location` is a PEM file with one's own certificate and its chain, `<names>.key.location` has its
key where the same file has not, `<names>.ca.location` has the authorities of the other side's certificates.
"""

from __future__ import annotations

import ssl

from deelog_schemas.config import Config
from deelog_schemas.errors import ConfigError, FieldError


def server_context(config: Config, names: str) -> ssl.SSLContext | None:
    """For who listens; None without a certificate. With authorities each client must show a certificate of theirs.

    Raises `ConfigError`.
    """
    if config[f"{names}.certificate.location"] is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if _loaded(context, config, names):
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(config: Config, names: str) -> ssl.SSLContext:
    """For who connects, and verifies the host's name; without authorities those of the system count.

    Raises `ConfigError`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not _loaded(context, config, names):
        context.load_default_certs()
    return context


def _loaded(context: ssl.SSLContext, config: Config, names: str) -> bool:
    """Whether authorities are named."""
    certificate, key, authority = (config[f"{names}.{part}.location"] for part in ("certificate", "key", "ca"))

    def asked() -> str:
        # Without this OpenSSL would ask on the terminal.
        what = f"{names}.certificate.location" if key is None else f"{names}.key.location"
        raise ConfigError([FieldError(what, "holds a key that is encrypted: it must not be")])

    what = f"{names}.certificate.location"
    try:
        if certificate is not None:
            context.load_cert_chain(certificate, key, asked)
        if authority is not None:
            what = f"{names}.ca.location"
            context.load_verify_locations(authority)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError; a path may be none
        reason = getattr(error, "strerror", None) or error.__class__.__name__
        raise ConfigError([FieldError(what, f"certificate, key or authorities cannot be used: {reason}")]) from None
    return authority is not None
