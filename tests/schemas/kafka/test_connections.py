"""Why a client has no connection: its last error, the remedy, and what a real listener's handshake tells."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme
from confluent_kafka import KafkaError

from deelog_connector.devkafka.ports import HOST
from deelog_schemas.kafka.connections import _ANSWERS, Connections, settle

AUTHORITY = trustme.CA()


@contextmanager
def listening(leaf: trustme.LeafCert | None) -> Iterator[tuple[int, list[int]]]:
    """A listener with TLS, or one that hangs up: its port, and a list that grows with each connection."""
    heard: list[int] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if leaf is not None:
        leaf.configure_cert(context)

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                if stopped:
                    return
                heard.append(1)
                if leaf is not None:
                    try:
                        context.wrap_socket(connection, server_side=True).close()
                    except OSError:
                        continue  # the client refused the certificate

    stopped: list[bool] = []
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield port, heard
        finally:
            stopped.append(True)
            socket.create_connection((HOST, port)).close()
            thread.join()


def failed(text: str, code: int = KafkaError._TRANSPORT, authority: str = "") -> Connections:
    made = Connections("admin", {"ssl.ca.location": authority} if authority else {})
    made(KafkaError(code, text))
    return made


@pytest.mark.parametrize(
    ("text", "code", "hopeless", "why"),
    [
        ("odd", KafkaError._TRANSPORT, False, "odd"),
        ("odd", KafkaError._AUTHENTICATION, True, "odd"),
        ("odd", KafkaError._SSL, True, "odd"),
        (
            "h:1: Connection refused (after 3ms in state CONNECT)",
            KafkaError._TRANSPORT,
            False,
            "h:1: Connection refused; is Kafka running?",
        ),
        (
            "SASL authentication failed",
            KafkaError._TRANSPORT,
            True,
            "SASL authentication failed; correct sasl",
        ),
    ],
)
def test_the_last_error_with_its_remedy(text: str, code: int, hopeless: bool, why: str) -> None:
    found = failed(text, code)
    assert found.hopeless is hopeless
    assert found.why.startswith(why)
    found(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert found.why.startswith(why)
    found.clear()
    assert (found.hopeless, found.why.partition(";")[0]) == (False, "no broker answers in time")
    assert "admin.override.security.protocol" in found.why


def test_a_client_without_tls_is_told_that_the_listener_speaks_it_and_asks_once() -> None:
    with listening(AUTHORITY.issue_cert(HOST)) as (port, heard):
        polled: list[float] = []
        found = Connections("consumer", {"bootstrap.servers": f"{HOST}:{port},h:1"})
        found.hear(polled.append)
        assert found.why.startswith(f"{HOST}:{port} speaks TLS")
        assert found.hopeless
        assert "consumer.override.security.protocol" in found.why
        found.clear()
        found.hear(polled.append)
        assert (polled, heard) == ([0, 0], [1])
        for quiet in ({"security.protocol": "sasl_ssl"}, {"bootstrap.servers": "h"}):
            Connections("admin", {"bootstrap.servers": f"{HOST}:{port}", **quiet}).hear(polled.append)
        said = Connections("admin", {"bootstrap.servers": f"{HOST}:{port}"})
        said.hear(lambda _: said(KafkaError(KafkaError._TRANSPORT, "odd")))
        assert (said.why, heard) == ("odd", [1])
    with listening(None) as (port, heard):
        plain = Connections("admin", {"bootstrap.servers": f"{HOST}:{port}"})
        plain.hear(polled.append)
        assert (plain.why.partition(";")[0], heard) == ("no broker answers in time", [1])


def test_a_certificate_is_refused_for_the_reason_of_openssl(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(file)
    words = "certificate verify failed: broker certificate could not be verified"
    for leaf, reason in (
        (trustme.CA().issue_cert(HOST), "unable to get local issuer certificate"),
        (AUTHORITY.issue_cert("other.host"), f"IP address mismatch, certificate is not valid for '{HOST}'."),
        (AUTHORITY.issue_cert(HOST), f"ssl://{HOST}:PORT/b: {words}"),  # meanwhile it is another one
    ):
        with listening(leaf) as (port, _):
            told = failed(f"ssl://{HOST}:{port}/b: {words}", authority=str(file)).why
            refused = f"the certificate of {HOST}:{port} is refused: {reason.replace('PORT', str(port))}"
            assert told == f"{refused}; correct admin.override.ssl.ca.location, or the broker's certificate"
    for text, ca in ((f"b: {words}", str(file)), (f"ssl://{HOST}:1/b: {words}", "/no/such/file")):
        assert failed(text, authority=ca).why.startswith(f"{text}; correct ")


@pytest.mark.parametrize(("answers", "polls"), [([0], 0), ([-1, -1, 3], 2), ([-1] * _ANSWERS, _ANSWERS)])
def test_it_settles_once_a_broker_answers_on_its_own_connection(answers: list[int], polls: int) -> None:
    given, polled = iter(answers), list[float]()
    client = SimpleNamespace(
        list_topics=lambda topic, seconds: SimpleNamespace(orig_broker_id=next(given)), poll=polled.append
    )
    settle(client, 1.0)
    assert (len(polled), next(given, None)) == (polls, None)
