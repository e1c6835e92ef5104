"""Options of Spark's Kafka source, which uses Kafka's Java client, from `consumer.override.*`, which are librdkafka's.

The job itself reads and writes with librdkafka. Spark's source plans its batches, and reads for `changes()` and
`latest()`. An option without a tested counterpart is an error, since it is part of how to connect.
Alternatives: docs/decisions.md, "Options of Spark's Kafka source".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deelog_schemas.config import Config
from deelog_spark.errors import DiffError

_PREFIX: Final = "consumer.override."
_LOGIN: Final = "org.apache.kafka.common.security"
_MODULES: Final = {
    "PLAIN": f"{_LOGIN}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_LOGIN}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_LOGIN}.scram.ScramLoginModule",
}
_SAME: Final = ("security.protocol", "client.dns.lookup", "client.rack", "reconnect.backoff.ms")
_WITHOUT_COUNTERPART: Final = (
    "enable.ssl.certificate.verification",
    "ssl.crl.location",
    "ssl.curves.list",
    "ssl.sigalgs.list",
)
_KEY: Final = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")


def kafka_options(config: Config) -> dict[str, str]:
    """The options of every Kafka source; DiffError where `consumer.override.*` has no counterpart.

    Secrets are among the values: do not print them.
    """
    return {
        **options(config.overrides("consumer")),
        "kafka.bootstrap.servers": ",".join(config["bootstrap.servers"]),
        "kafka.isolation.level": "read_committed",
        # A range often ends with a transaction's marker, after which a fetch waits for more: 500 ms by default.
        "kafka.fetch.max.wait.ms": "10",
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }


def options(overrides: Mapping[str, str]) -> dict[str, str]:
    """The `kafka.` options of a source for a consumer's overrides; DiffError for one without a counterpart."""
    java = {name: overrides[name] for name in _SAME if name in overrides}
    protocol = java.get("security.protocol", "plaintext").upper()
    if "security.protocol" in java:
        java["security.protocol"] = protocol
    if protocol.startswith("SASL"):
        java |= _sasl(overrides)
    if protocol.endswith("SSL"):
        java |= _tls(overrides)
    return {f"kafka.{name}": value for name, value in java.items()}


def _sasl(overrides: Mapping[str, str]) -> dict[str, str]:
    mechanism = overrides.get("sasl.mechanism", overrides.get("sasl.mechanisms", "GSSAPI"))
    module = _MODULES.get(mechanism)
    if module is None:
        raise DiffError(
            f"{_PREFIX}sasl.mechanism={mechanism}: the job can configure Spark's source for Kafka for "
            f"{', '.join(_MODULES)} only; use one of them, or TLS with a client certificate"
        )
    user, password = (_quoted(overrides.get(f"sasl.{name}", "")) for name in ("username", "password"))
    login = f"{module} required username={user} password={password};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def _quoted(text: str) -> str:
    """A value in JAAS syntax."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _tls(overrides: Mapping[str, str]) -> dict[str, str]:
    for name in _WITHOUT_COUNTERPART:
        if name in overrides:
            raise DiffError(f"{_PREFIX}{name}: Spark's source for Kafka has nothing like it; leave it out for the job")
    java: dict[str, str] = {}
    if "ssl.cipher.suites" in overrides:
        raise DiffError(f"{_PREFIX}ssl.cipher.suites: Java has other names for them; leave it out for the job")
    if overrides.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        java["ssl.endpoint.identification.algorithm"] = ""
    if "ssl.ca.location" in overrides:
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": overrides["ssl.ca.location"]}
    elif "ssl.ca.pem" in overrides:
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": overrides["ssl.ca.pem"]}
    if "ssl.keystore.location" in overrides:
        java |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": overrides["ssl.keystore.location"]}
        java["ssl.keystore.password"] = java["ssl.key.password"] = overrides.get("ssl.keystore.password", "")
        return java
    chain = _pem(overrides, "ssl.certificate")
    if chain is None:
        return java
    key = _pem(overrides, "ssl.key")
    if key is None or not any(begin in key for begin in _KEY):
        raise DiffError(
            f"{_PREFIX}ssl.key.location: Java reads keys in PKCS#8 alone: convert it by `openssl pkcs8 -topk8 -in KEY`"
        )
    java |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}
    if "ssl.key.password" in overrides:
        java["ssl.key.password"] = overrides["ssl.key.password"]
    return java


def _pem(overrides: Mapping[str, str], name: str) -> str | None:
    if f"{name}.pem" in overrides:
        return overrides[f"{name}.pem"]
    path = overrides.get(f"{name}.location")
    if path is None:
        return None
    try:
        return Path(path).read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise DiffError(f"{_PREFIX}{name}.location: {path} cannot be read: {error}") from None
