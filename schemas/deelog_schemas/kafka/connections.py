"""Why a Kafka client has no connection: its last error, with the field to correct.

librdkafka retries for ever and fails requests with "transport failure". Only its error callback gets the reason. For a
certificate that is only "could not be verified"; for a client without TLS on a TLS listener it is nothing at all.
Weighed in docs/decisions.md, "Where a TLS handshake's reason comes from".

Besides the configuration, this is the only module of `deelog_schemas` that does I/O: connector and Spark job both need
it, and neither may import the other.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

ADMIN_SETTINGS: Final = {"enable.sparse.connections": False}
"""Of every admin client: it stays connected to all brokers.

Otherwise a request that waits for a broker which is away asks for a connection whenever one is refused, and takes a
whole core until its time is over (librdkafka 2.16).
"""
_HANDSHAKE_SECONDS: Final = 3.0
_ANSWERS: Final = 100
_SOON: Final = 0.005
_ADDRESS: Final = re.compile(r"ssl://(.+):(\d+)/")
_NOISE: Final = re.compile(r" \(after \d+ms in state .*\)$")

_UNVERIFIED: Final = "certificate verify failed"
_PROTOCOL: Final = "set {client}.override.security.protocol to what the listener at this port speaks"
# Parts of librdkafka's messages, and the remedies. The first match counts. Waiting helps with none of them.
_REMEDIES: Final = (
    (_UNVERIFIED, "correct {client}.override.ssl.ca.location, or the broker's certificate"),
    ("connecting to a PLAINTEXT broker listener", _PROTOCOL),
    ("connecting to a SSL listener", _PROTOCOL),
    ("broker might require SASL authentication", _PROTOCOL),
    (
        "SSL alert number",
        "correct {client}.override.ssl.certificate.location and ssl.key.location: the broker refuses them",
    ),
    ("Unsupported SASL mechanism", "correct {client}.override.sasl.mechanism"),
    ("uthentication", "correct sasl.mechanism, sasl.username and sasl.password of {client}.override.*"),
)
_MAY_PASS: Final = (
    ("Failed to resolve", "correct bootstrap.servers, or the names under which the brokers announce themselves"),
    ("Connection refused", "is Kafka running? Start it, or correct bootstrap.servers"),
    # A listener without TLS that hangs up, or a broker that stops.
    ("SSL connection closed by peer", _PROTOCOL),
    ("tls_retry_write_records", _PROTOCOL),
)
_SILENCE: Final = "no broker answers in time; is Kafka up, and {client}.override.security.protocol the listener's?"
_FINAL: Final = ("_AUTHENTICATION", "_SSL")
_SAYS_NOTHING: Final = "_ALL_BROKERS_DOWN"


def _unverified() -> ssl.SSLContext:
    """Accepts any certificate: nothing is sent. It is only used to see whether the listener speaks TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def settle(client: Any, seconds: float) -> None:
    """Returns once a broker has answered on its own connection, not on a bootstrap one, or after a few tries.

    librdkafka drops the bootstrap connection as soon as it knows the brokers. A transactional producer (librdkafka
    2.16) that has no other connection at that moment looks for its coordinator 0.5 s later instead of at once.
    Raises the client's error where no broker answers a request within `seconds`.
    """
    for _ in range(_ANSWERS):
        # This topic exists, or at least is not created by the request.
        if client.list_topics("__transaction_state", seconds).orig_broker_id >= 0:
            return
        client.poll(_SOON)


class Connections:
    """The connection errors of one client.

    Pass it to the client as `error_cb`, which is called while the client is polled. Call `hear` after a failed request.
    """

    def __init__(self, client: str, settings: Mapping[str, Any]) -> None:
        """`client` is `producer`, `consumer` or `admin`; `settings` are the client's settings."""
        self.client = client
        self._authority = settings.get("ssl.ca.location"), settings.get("ssl.ca.pem")
        self._servers = str(settings.get("bootstrap.servers", ""))
        self._tls = str(settings.get("security.protocol", "")).upper().endswith("SSL")
        self._asked = False
        self._name = self._text = ""

    def __call__(self, error: Any) -> None:
        """The client's error callback."""
        if error.name() != _SAYS_NOTHING:
            self._name, self._text = error.name(), _NOISE.sub("", error.str())

    def clear(self) -> None:
        """Forgets earlier errors: the client got an answer."""
        self._name = self._text = ""

    def hear(self, poll: Callable[[float], Any]) -> None:
        """Polls the client once. If that gives no error, checks once whether the listener speaks TLS."""
        poll(0)
        if not (self._text or self._asked or self._tls):
            self._asked = True
            host, _, port = self._servers.split(",")[0].rpartition(":")
            if port.isdecimal() and self._handshake(_unverified(), host, int(port)) == "":
                self._text = f"{host}:{port} speaks TLS (connecting to a SSL listener)"

    @property
    def hopeless(self) -> bool:
        """Whether waiting cannot help: the configuration or a certificate is wrong."""
        return self._name in _FINAL or any(words in self._text for words, _ in _REMEDIES)

    @property
    def why(self) -> str:
        """The last error with its remedy, or the remedy for no answer at all. May ask the broker and take seconds."""
        text = self._text
        for words, remedy in (*_REMEDIES, *_MAY_PASS):
            if words in text:
                if words == _UNVERIFIED:
                    text = self._of_certificate(text)
                return f"{text}; {remedy.format(client=self.client)}"
        return text or _SILENCE.format(client=self.client)

    def _of_certificate(self, text: str) -> str:
        address = _ADDRESS.match(text)
        if address is None:
            return text
        host, port, (file, data) = address[1].strip("[]"), int(address[2]), self._authority
        try:
            context = ssl.create_default_context(cafile=file, cadata=data)
        except OSError:
            return text
        return f"the certificate of {host}:{port} is refused: {self._handshake(context, host, port) or text}"

    def _handshake(self, context: ssl.SSLContext, host: str, port: int) -> str | None:
        """OpenSSL's reason to refuse the listener's certificate; empty if it has none, None without an answer."""
        try:
            with (
                socket.create_connection((host, port), _HANDSHAKE_SECONDS) as connection,
                context.wrap_socket(connection, server_hostname=host),
            ):
                return ""
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        except OSError:
            return None
