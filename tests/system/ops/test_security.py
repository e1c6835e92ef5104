"""docs/howto/security.md against a real broker: ways in that work, and what a wrong one is told, and whether at once.

Wrong ways tried: password, mechanism, authority, expired certificate, another host's certificate, plaintext at a TLS
port, TLS at a plaintext port, passwords at a TLS port, no certificate of the client, one of an unknown authority, files
that are not there or hold something else; each for the client that asks first, and for producer and consumer alone.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deelog_connector.errors import KafkaUnavailable, KafkaUnusable
from deelog_connector.kafka.admin import KafkaAdmin
from deelog_connector.kafka.librdkafka import Librdkafka
from deelog_connector.kafka_port import BEGINNING, REQUEST_SECONDS, WriteFailed
from deelog_schemas.config import Config, load
from tests.connector.cache import cache, config_of, run, started
from tests.support.paths import ROOT
from tests.support.secure import PASSWORD, PLAIN_PASSWORD, PLAIN_USER, Right, SecureKafka, overrides

PAGE = ROOT / "docs" / "howto" / "security.md"
Settings = dict[str, str]


@pytest.fixture(scope="module")
def secure_for_all(secure: SecureKafka) -> SecureKafka:
    """Whoever gets in may do everything."""
    secure.grant(Right("*", kind, "*", False, "All") for kind in ("Topic", "Group", "TransactionalId"))
    return secure


def trusting(secure: SecureKafka, **more: str) -> Settings:
    """What a client needs to believe the broker."""
    settings = {"security.protocol": "SSL", "ssl.ca.location": str(secure.certificates.authority)}
    return settings | {name.replace("_", "."): value for name, value in more.items()}


def certified(secure: SecureKafka) -> Settings:
    """And to be believed."""
    files = secure.certificates
    mine = {"ssl_certificate_location": str(files.client_chain), "ssl_key_location": str(files.client_key)}
    return trusting(secure, **mine)


def ways(secure: SecureKafka) -> dict[str, tuple[str, Settings]]:
    over_tls = {"security_protocol": "SASL_SSL"}
    plain = {**over_tls, "sasl_mechanism": "PLAIN"}
    return {
        "TLS": ("tls", trusting(secure)),
        "certificates on both sides": ("mtls", certified(secure)),
        "SCRAM": ("sasl", secure.user("a")),
        "SCRAM over TLS": (
            "sasl_tls",
            secure.user("b", "SCRAM-SHA-512") | trusting(secure, security_protocol="SASL_SSL"),
        ),
        "PLAIN over TLS": (
            "sasl_tls",
            trusting(secure, **plain, sasl_username=PLAIN_USER, sasl_password=PLAIN_PASSWORD),
        ),
    }


@pytest.mark.parametrize("way", ["TLS", "certificates on both sides", "SCRAM", "SCRAM over TLS", "PLAIN over TLS"])
def test_ways_in(secure_for_all: SecureKafka, prefix: str, way: str) -> None:
    """A connector writes, reads back, and releases."""
    listener, settings = ways(secure_for_all)[way]

    async def work() -> None:
        config = config_of(secure_for_all.bootstrap(listener), prefix, **overrides(settings))
        async with cache(config, release=True) as found:
            await started(found)
            await found.put(b"a", b"1")
            await found.drained()
            assert found.connector.stats.written == 1

    run(work())


def wrong_ways(secure: SecureKafka) -> dict[str, tuple[str, Settings, str]]:
    """Listener, settings, and what must be said."""
    files, tls = secure.certificates, trusting(secure)
    scram = secure.user("a")
    unknown = {"ssl.certificate.location": str(files.unknown_chain), "ssl.key.location": str(files.unknown_key)}
    protocol = r"set admin\.override\.security\.protocol to what the listener"
    password = r"correct sasl\.mechanism, sasl\.username and sasl\.password of admin\.override"
    issuer = "unable to get local issuer"
    authority = r"certificate of 127\.0\.0\.1:\d+ is refused: {}.*correct admin\.override\.ssl\.ca\.location, or"
    own = r"correct admin\.override\.ssl\.certificate\.location and ssl\.key\.location"
    return {
        "password": ("sasl", {**scram, "sasl.password": "wr0ng-p455"}, password),
        "user": ("sasl", {**scram, "sasl.username": "nobody"}, password),
        "mechanism": ("sasl", {**scram, "sasl.mechanism": "PLAIN"}, password),
        "authority": (
            "tls",
            {**tls, "ssl.ca.location": str(files.other)},
            authority.format(issuer),
        ),
        "no authority": ("tls", {"security.protocol": "SSL"}, authority.format(issuer)),
        "expired": ("expired", tls, authority.format("certificate has expired")),
        "another host": ("foreign", tls, authority.format(r"IP address mismatch, certificate is not valid for")),
        "plaintext at TLS": ("tls", {}, f"SSL listener.*{protocol}"),
        "TLS at plaintext": ("plain", tls, protocol),
        "passwords at TLS": ("tls", scram, f"SSL listener.*{protocol}"),
        # The broker hangs up in silence; a client that was just about to write finds the pipe broken.
        "TLS at passwords over TLS": (
            "sasl_tls",
            tls,
            rf"and admin\.override\.security\.protocol the listener's|tls_retry_write_records.*{protocol}",
        ),
        "no certificate": ("mtls", tls, own),
        "unknown certificate": ("mtls", {**tls, **unknown}, own),
        "no file": (
            "tls",
            {**tls, "ssl.ca.location": "/no/ca.pem"},
            r"ssl\.ca\.location: the file /no/ca\.pem cannot be",
        ),
        "not a certificate": ("tls", {**tls, "ssl.ca.pem": "none"}, r"^admin\.override\.\*: "),
        "protocol": ("tls", {"security.protocol": "TLS"}, r'Invalid value "TLS" for .*security\.protocol'),
        "nobody there": ("nobody", {}, r"Connection refused; is Kafka running\?"),
        "no such host": ("nohost", {}, r"Failed to resolve.*correct bootstrap\.servers"),
    }


WRONG = (
    "password", "user", "mechanism", "authority", "no authority", "expired", "another host", "plaintext at TLS",
    "TLS at plaintext", "passwords at TLS", "TLS at passwords over TLS", "no certificate", "unknown certificate",
    "no file", "not a certificate", "protocol", "nobody there", "no such host",
)  # fmt: skip


QUICK = ("password", "authority", "plaintext at TLS", "no certificate", "no file")
"""One of each kind; with the others it is minutes."""
MAY_PASS = ("TLS at passwords over TLS", "nobody there", "no such host")
"""What a broker that starts looks like, too: it is told after a request's seconds."""


@pytest.mark.parametrize("way", [way if way in QUICK else pytest.param(way, marks=pytest.mark.slow) for way in WRONG])
def test_a_wrong_way_in_is_told_with_its_remedy(secure_for_all: SecureKafka, prefix: str, way: str) -> None:
    listener, settings, wanted = wrong_ways(secure_for_all)[way]
    elsewhere = {"nobody": "127.0.0.1:1", "nohost": "kafka.invalid:9092"}
    bootstrap = elsewhere.get(listener) or secure_for_all.bootstrap(listener)
    config = config_of(bootstrap, prefix, **overrides(settings, ["admin"]))
    with pytest.raises(KafkaUnusable) as refused:
        KafkaAdmin(config, REQUEST_SECONDS if way in MAY_PASS else math.inf).partitions("t")
    said = str(refused.value)
    assert re.search(wanted, said), said
    for secret in (PASSWORD, "wr0ng-p455"):
        assert secret not in said


@pytest.mark.slow
def test_producer_and_consumer_alone(secure_for_all: SecureKafka, prefix: str) -> None:
    """Their users may be others than the admin's: each names its own."""
    scram = secure_for_all.user("a")
    wrong = {**scram, "sasl.password": "wr0ng-p455"}

    def config(who: str) -> Config:
        return config_of(secure_for_all.bootstrap("sasl"), prefix, **(overrides(scram) | overrides(wrong, [who])))

    async def work() -> None:
        port = Librdkafka()
        reader = await port.reader(config("consumer"), "t")
        with pytest.raises(KafkaUnavailable, match=r"sasl\.password of consumer\.override"):
            await reader.seek({0: BEGINNING})
        session = await port.session(config("producer"), f"{prefix}/node", lambda: 1_000_000)
        with pytest.raises(WriteFailed, match=r"sasl\.password of producer\.override") as refused:
            await session.open()
        assert refused.value.denied
        await reader.close()
        await port.close()

    run(work())


def test_the_page(secure_for_all: SecureKafka, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configurations, with secrets by reference, are of a node that gets in; a wrong secret ends `deelog node`
    with one line, in which no secret is."""
    files = secure_for_all.certificates
    (tmp_path / "kafka.properties").write_text("password=" + PLAIN_PASSWORD + "\n")
    monkeypatch.setenv("KAFKA_PASSWORD", PLAIN_PASSWORD)
    blocks = re.findall(r"```properties\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    for number, (block, listener) in enumerate(zip(blocks, ("tls", "mtls", "sasl_tls"), strict=False)):
        text = block.replace("kafka:9093", secure_for_all.bootstrap(listener))
        for path, real in (
            ("/etc/deelog/ca.pem", files.authority),
            ("/etc/deelog/node.crt", files.client_chain),
            ("/etc/deelog/node.key", files.client_key),
            ("/etc/deelog/kafka.properties", tmp_path / "kafka.properties"),
        ):
            text = text.replace(path, str(real))
        own = config_of("b:1", prefix).raw | {"topic.prefix": prefix}
        own = {name: value for name, value in own.items() if name != "bootstrap.servers"}
        file = tmp_path / f"{number}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in own.items()) + text)
        config = load(file)
        assert KafkaAdmin(config).partitions("t") == 0
        assert PLAIN_PASSWORD not in repr(config)

    monkeypatch.setenv("KAFKA_PASSWORD", "wr0ng-p455")
    command = [sys.executable, "-c", "from deelog_connector.cli import main; main()", "node", "--log-level", "DEBUG"]
    command += ["--config", str(file)]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 9, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("deelog node: no broker answers at bootstrap.servers=")
    assert "correct sasl.mechanism, sasl.username and sasl.password of admin.override.*" in last
    assert "wr0ng-p455" not in done.stderr + done.stdout
