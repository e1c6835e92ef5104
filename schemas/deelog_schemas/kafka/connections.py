"""Why a client of Kafka has no connection: what it last said, with the field to correct.

librdkafka tries on for ever and answers requests with "transport failure"; the reason goes to its error callback
alone: of a certificate only that it "could not be verified", of a listener that speaks TLS when it does not, nothing.
Weighed in docs/decisions.md, "Where a TLS handshake's reason comes from".

Beside the configuration the one module of `deelog_schemas` that reaches outside: connector and Spark job both need it,
and neither may import the other.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

_HANDSHAKE_SECONDS: Final = 3.0
_ANSWERS: Final = 100
_SOON: Final = 0.005
_ADDRESS: Final = re.compile(r"ssl://(.+):(\d+)/")
_NOISE: Final = re.compile(r" \(after \d+ms in state .*\)$")

_UNVERIFIED: Final = "certificate verify failed"
_PROTOCOL: Final = "set {client}.override.security.protocol to what the listener at this port speaks"
# What librdkafka says, in part, and what mends it. The first that fits counts. None of it passes by waiting.
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
)
_SILENCE: Final = "nobody answers there in time; is Kafka up, and {client}.override.security.protocol the listener's?"
_FINAL: Final = ("_AUTHENTICATION", "_SSL")
_SAYS_NOTHING: Final = "_ALL_BROKERS_DOWN"


def _unverified() -> ssl.SSLContext:
    """Takes any certificate: nothing is said over the connection, only whether it is one of TLS counts."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def settle(client: Any, seconds: float) -> None:
    """Returns once a broker has answered on a connection of its own; at last without one.

    The address a broker was found by is dropped as soon as it has said who the brokers are. A transactional producer of
    librdkafka 2.16 that has no other connection at that moment looks for its coordinator 0.5 s later, not at once.
    Raises the client's error where none answers within `seconds`.
    """
    for _ in range(_ANSWERS):
        # Of a topic that is there, or at least not created by being asked for.
        if client.list_topics("__transaction_state", seconds).orig_broker_id >= 0:
            return
        client.poll(_SOON)


class Connections:
    """What one client said of its connections.

    Hand it to the client as `error_cb`, which it calls where it is polled. Call `hear` after a request that failed.
    """

    def __init__(self, client: str, settings: Mapping[str, Any]) -> None:
        """`client` is `producer`, `consumer` or `admin`; `settings` are what it was given."""
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
        """The client was answered: what it said before is over."""
        self._name = self._text = ""

    def hear(self, poll: Callable[[float], Any]) -> None:
        """Polls the client once; where it has nothing to say, asks the listener, once, whether it speaks TLS."""
        poll(0)
        if not (self._text or self._asked or self._tls):
            self._asked = True
            host, _, port = self._servers.split(",")[0].rpartition(":")
            if port.isdecimal() and self._handshake(_unverified(), host, int(port)) == "":
                self._text = f"{host}:{port} speaks TLS (connecting to a SSL listener)"

    @property
    def hopeless(self) -> bool:
        """Whether no waiting mends what was said: it is the configuration's, or a certificate's."""
        return self._name in _FINAL or any(words in self._text for words, _ in _REMEDIES)

    @property
    def why(self) -> str:
        """What was said last, with its remedy; empty where nothing was. May take seconds: it may ask the broker."""
        text = self._text
        for words, remedy in (*_REMEDIES, *_MAY_PASS):
            if words in text:
                if words == _UNVERIFIED:
                    text = self._of_certificate(text)
                return f"{text}; {remedy.format(client=self.client)}"
        return text or _SILENCE.format(client=self.client)

    def _of_certificate(self, text: str) -> str:
        found = _ADDRESS.match(text)
        if found is None:
            return text
        host, port, (file, data) = found[1].strip("[]"), int(found[2]), self._authority
        try:
            context = ssl.create_default_context(cafile=file, cadata=data)
        except OSError:
            return text
        return f"the certificate of {host}:{port} is refused: {self._handshake(context, host, port) or text}"

    def _handshake(self, context: ssl.SSLContext, host: str, port: int) -> str | None:
        """What OpenSSL has against the certificate of a listener, empty if nothing; None where there is no answer."""
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
