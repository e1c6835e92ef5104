"""A real Kafka with security: users with passwords, certificates made for the run, and KRaft's authorizer.

Its listeners, by name: `plain` (for the tests themselves; its anonymous user may do everything), `sasl` (passwords),
`sasl_tls` (passwords over TLS), `tls` (the broker's certificate), `mtls` (certificates of both sides), `expired` (the
broker's certificate has expired), `foreign` (the certificate is for another host).
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_connector.devkafka.ports import HOST, free_ports
from tests.support.waiting import waiting

PASSWORD: Final = 'pa55-w0rd "of" s\'ome=one; ü\\'
"""The password of every SCRAM user. Its characters are special in configuration files, librdkafka and Java's syntax."""
PLAIN_USER: Final = "plain-user"
PLAIN_PASSWORD: Final = "pl41n-p455w0rd"
SCRAM: Final = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
_PROTOCOLS: Final = {
    "sasl": "SASL_PLAINTEXT",
    "sasl_tls": "SASL_SSL",
    "tls": "SSL",
    "mtls": "SSL",
    "expired": "SSL",
    "foreign": "SSL",
}
_ANY: Final = "*"
_SETTLE_SECONDS: Final = 10.0
_REQUEST_SECONDS: Final = 20.0


class Right(NamedTuple):
    """One ACL: what `user` may do with which resource."""

    user: str
    resource: str
    """`Topic`, `Group`, `TransactionalId` or `Cluster`, as in Kafka's own tools."""
    name: str
    prefixed: bool
    operation: str

    def binding(self) -> AclBinding:
        kinds = {
            "Topic": ResourceType.TOPIC,
            "Group": ResourceType.GROUP,
            "TransactionalId": ResourceType.TRANSACTIONAL_ID,
            "Cluster": ResourceType.BROKER,
        }
        pattern = ResourcePatternType.PREFIXED if self.prefixed else ResourcePatternType.LITERAL
        operation = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.operation).upper()
        return AclBinding(
            kinds[self.resource],
            self.name,
            pattern,
            f"User:{self.user}",
            _ANY,
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )


class Certificates:
    """A certificate authority, the broker's certificates and a client's, as files. Nobody trusts `other`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        authority, other = trustme.CA(), trustme.CA()
        self.authority, self.other = folder / "ca.pem", folder / "other.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        other.cert_pem.write_to_path(str(self.other))
        past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        self.broker = _pem(folder / "broker.pem", authority.issue_cert(HOST, "localhost"))
        self.expired = _pem(folder / "expired.pem", authority.issue_cert(HOST, not_after=past))
        self.foreign = _pem(folder / "foreign.pem", authority.issue_cert("kafka.example.org"))
        client = authority.issue_cert("client@example.org", common_name="tester")
        self.client_key, self.client_chain = folder / "client.key", folder / "client.crt"
        self.client_key.write_bytes(_pkcs8(client))
        self.client_chain.write_bytes(client.cert_chain_pems[0].bytes())
        self.unknown_key, self.unknown_chain = folder / "unknown.key", folder / "unknown.crt"
        unknown = other.issue_cert("client@example.org", common_name="tester")
        self.unknown_key.write_bytes(_pkcs8(unknown))
        self.unknown_chain.write_bytes(unknown.cert_chain_pems[0].bytes())


def _pkcs8(leaf: trustme.LeafCert) -> bytes:
    """Its key in PKCS #8, which Java can read, too."""
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _pem(path: Path, leaf: trustme.LeafCert) -> Path:
    path.write_bytes(_pkcs8(leaf) + b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    return path


class SecureKafka:
    """See the module. Use it with `secure_kafka()`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.certificates = Certificates(folder / "certificates")
        plain, controller, *others = free_ports(2 + len(_PROTOCOLS))
        self._ports = dict(zip(_PROTOCOLS, others, strict=True))
        self.broker = EmbeddedKafka(folder / "kafka", plain, overrides=self._settings(plain, controller))
        self._users: set[str] = set()

    def _settings(self, plain: int, controller: int) -> dict[str, str]:
        listeners = {"PLAINTEXT": plain} | {name.upper(): port for name, port in self._ports.items()}
        advertised = ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items())
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        protocols |= {name.upper(): protocol for name, protocol in _PROTOCOLS.items()}
        files = self.certificates
        settings = {
            "listeners": f"{advertised},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": advertised,
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(files.authority),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(files.broker),
            "listener.name.mtls.ssl.client.auth": "required",
            "listener.name.expired.ssl.keystore.type": "PEM",
            "listener.name.expired.ssl.keystore.location": str(files.expired),
            "listener.name.foreign.ssl.keystore.type": "PEM",
            "listener.name.foreign.ssl.keystore.location": str(files.foreign),
        }
        for listener in ("sasl", "sasl_tls"):
            own, package = f"listener.name.{listener}", "org.apache.kafka.common.security"
            settings[f"{own}.plain.sasl.jaas.config"] = (
                f'{package}.plain.PlainLoginModule required user_{PLAIN_USER}="{PLAIN_PASSWORD}";'
            )
            for mechanism in SCRAM:
                settings[f"{own}.{mechanism.lower()}.sasl.jaas.config"] = f"{package}.scram.ScramLoginModule required;"
        return settings

    def bootstrap(self, listener: str = "plain") -> str:
        """`host:port` of a listener."""
        return self.broker.bootstrap if listener == "plain" else f"{HOST}:{self._ports[listener]}"

    @cached_property
    def admin(self) -> AdminClient:
        """A client that may do everything. It is kept, since a client that is dropped cancels its requests."""
        return AdminClient({"bootstrap.servers": self.bootstrap()})

    def user(self, name: str, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
        """Creates the user if needed. Returns the librdkafka settings with which a client logs in as this user."""
        if name not in self._users:
            info = ScramCredentialInfo(SCRAM[mechanism], 4096)
            made = UserScramCredentialUpsertion(name, info, PASSWORD.encode())
            for future in self.admin.alter_user_scram_credentials([made]).values():
                future.result(_REQUEST_SECONDS)
            self._users.add(name)
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": name,
            "sasl.password": PASSWORD,
        }

    def grant(self, rights: Iterable[Right]) -> None:
        """Grants the rights. Returns once they are in effect."""
        bindings = [right.binding() for right in rights]
        for future in self.admin.create_acls(bindings).values():
            future.result(_REQUEST_SECONDS)
        self._until(lambda: set(bindings) <= self._granted())

    def revoke(self, rights: Iterable[Right]) -> None:
        """Revokes the rights. Returns once that is in effect."""
        bindings = [right.binding() for right in rights]
        filters = [
            AclBindingFilter(
                b.restype, b.name, b.resource_pattern_type, b.principal, b.host, b.operation, b.permission_type
            )
            for b in bindings
        ]
        for future in self.admin.delete_acls(filters).values():
            future.result(_REQUEST_SECONDS)
        self._until(lambda: not set(bindings) & self._granted())

    def _granted(self) -> set[AclBinding]:
        every: Any = None  # None, which the client's types do not allow
        anything = AclBindingFilter(
            ResourceType.ANY, every, ResourcePatternType.ANY, every, every, AclOperation.ANY, AclPermissionType.ANY
        )
        return set(self.admin.describe_acls(anything).result(_REQUEST_SECONDS))

    def _until(self, condition: Callable[[], bool]) -> None:
        waiting(condition, _SETTLE_SECONDS, "the authorizer")


@contextmanager
def secure_kafka(folder: Path) -> Iterator[SecureKafka]:
    """A secure Kafka that runs during the block."""
    kafka = SecureKafka(folder)
    with kafka.broker:
        yield kafka


def overrides(settings: dict[str, str], clients: Iterable[str] = ("producer", "consumer", "admin")) -> dict[str, str]:
    """Client settings as configuration fields."""
    return {f"{client}.override.{name}": value for client in clients for name, value in settings.items()}
