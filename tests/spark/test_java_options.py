"""librdkafka's options translated for Kafka's Java client. `test_secure.py` tests them with a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from deelog_spark.errors import DiffError
from deelog_spark.java_options import kafka_options, options
from tests.support.changes import config_of

KEY = "-----BEGIN PRIVATE KEY-----\nk\n"
LOGIN = {"security.protocol": "sasl_plaintext", "sasl.username": "u", "sasl.password": 'p"\\'}


def test_nothing_given_is_nothing_said() -> None:
    assert options({}) == {}
    assert options({"fetch.min.bytes": "1"}) == {}, "what tunes librdkafka alone is left out"


def test_options_of_the_same_name() -> None:
    given = {"client.dns.lookup": "use_all_dns_ips", "client.rack": "a", "reconnect.backoff.ms": "9"}
    assert options(given) == {f"kafka.{name}": value for name, value in given.items()}


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "scram.ScramLoginModule"),
    ],
)
@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_a_login(mechanism: str, module: str, name: str) -> None:
    assert options({**LOGIN, name: mechanism}) == {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
        r'username="u" password="p\"\\";',
    }


@pytest.mark.parametrize("mechanism", [{}, {"sasl.mechanism": "OAUTHBEARER"}])
def test_another_login_is_an_error(mechanism: dict[str, str]) -> None:
    named = mechanism.get("sasl.mechanism", "GSSAPI")
    with pytest.raises(DiffError, match=f"sasl.mechanism={named}: .*PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 only"):
        options({**LOGIN, **mechanism})


def test_tls_with_files(tmp_path: Path) -> None:
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_text("chain")
    key.write_text(KEY)
    given = {
        "security.protocol": "SSL",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": str(chain),
        "ssl.key.location": str(key),
        "ssl.key.password": "p",
    }
    assert options(given) == {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "chain",
        "kafka.ssl.keystore.key": KEY,
        "kafka.ssl.key.password": "p",
    }


def test_tls_with_texts() -> None:
    given = {"ssl.ca.pem": "ca", "ssl.certificate.pem": "chain", "ssl.key.pem": KEY}
    tls = options({"security.protocol": "ssl", **given})
    assert tls["kafka.ssl.truststore.certificates"] == "ca"
    assert (tls["kafka.ssl.keystore.certificate.chain"], tls["kafka.ssl.keystore.key"]) == ("chain", KEY)
    assert "kafka.ssl.key.password" not in tls
    assert options(given) == {}, "without a protocol that has TLS"


def test_tls_with_a_keystore_and_without_the_host_s_name() -> None:
    given = {
        "security.protocol": "SSL",
        "ssl.keystore.location": "/k.p12",
        "ssl.keystore.password": "p",
        "ssl.endpoint.identification.algorithm": "NONE",
    }
    assert options(given) == {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.ssl.keystore.type": "PKCS12",
        "kafka.ssl.keystore.location": "/k.p12",
        "kafka.ssl.keystore.password": "p",
        "kafka.ssl.key.password": "p",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.ssl.certificate.verification", "false"),
        ("ssl.crl.location", "/crl"),
        ("ssl.curves.list", "P-521"),
        ("ssl.sigalgs.list", "RSA"),
        ("ssl.cipher.suites", "x"),
    ],
)
def test_what_has_no_counterpart_is_an_error(name: str, value: str) -> None:
    with pytest.raises(DiffError, match=f"consumer.override.{name}: "):
        options({"security.protocol": "SSL", name: value})
    assert options({name: value}) == {}


@pytest.mark.parametrize("key", [{}, {"ssl.key.pem": "-----BEGIN EC PRIVATE KEY-----"}])
def test_a_key_that_java_does_not_read_is_an_error(key: dict[str, str]) -> None:
    with pytest.raises(DiffError, match="openssl pkcs8 -topk8"):
        options({"security.protocol": "SSL", "ssl.certificate.pem": "chain", **key})


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DiffError, match=r"ssl\.certificate\.location: .*none\.pem cannot be read"):
        options({"security.protocol": "SSL", "ssl.certificate.location": str(tmp_path / "none.pem")})


def test_every_source_reads_committed_records_only(tmp_path: Path) -> None:
    config = config_of("b:1", "p", str(tmp_path), **{"consumer.override.client.rack": "r"})
    found = kafka_options(config)
    assert found["kafka.bootstrap.servers"] == "b:1"
    assert found["kafka.isolation.level"] == "read_committed"
    assert (found["includeHeaders"], found["failOnDataLoss"]) == ("true", "true")
    assert found["kafka.client.rack"] == "r"
