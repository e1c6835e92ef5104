"""TLS by files. Bad input: none there, one that is none. An encrypted key is in tests/connector/rest/test_server.py."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from deelog_connector.tls import client_context, server_context
from deelog_schemas.config import Config, parse
from deelog_schemas.errors import ConfigError

GIVEN = {"topic.prefix": "p", "bootstrap.servers": "b:1", "node.id": "n", "cache.name": "c"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ca.pem` and `both.pem`, a certificate with its key."""
    made, authority = tmp_path_factory.mktemp("tls"), trustme.CA()
    authority.cert_pem.write_to_path(made / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(made / "both.pem")
    (made / "none.pem").write_text("nothing")
    return made


def config(folder: Path, names: str, **files: str) -> Config:
    named = {f"{names}.{part}.location": str(folder / file) for part, file in files.items()}
    redis = {"connector.class": "deelog.RedisConnector", "redis.url": "rediss://h", "cache.value.format": "json"}
    return parse({**GIVEN, **(redis if names == "redis.ssl" else {}), **named})


def test_a_server_asks_for_a_certificate_only_with_an_authority(folder: Path) -> None:
    both = {"certificate": "both.pem"}
    for given, mode in ((both, ssl.CERT_NONE), (both | {"ca": "ca.pem"}, ssl.CERT_REQUIRED)):
        context = server_context(config(folder, "rest.ssl", **given), "rest.ssl")
        assert context is not None
        assert (context.minimum_version, context.verify_mode) == (ssl.TLSVersion.TLSv1_2, mode)
    assert server_context(config(folder, "rest.ssl"), "rest.ssl") is None


@pytest.mark.parametrize("certificate", [{}, {"certificate": "both.pem"}])
def test_a_client_verifies_the_host(folder: Path, certificate: dict[str, str]) -> None:
    for authority in ({}, {"ca": "ca.pem"}):
        context = client_context(config(folder, "redis.ssl", **authority, **certificate), "redis.ssl")
        assert context.check_hostname
        assert (context.minimum_version, context.verify_mode) == (ssl.TLSVersion.TLSv1_2, ssl.CERT_REQUIRED)
        assert any("trustme" in str(known["issuer"]) for known in context.get_ca_certs()) == bool(authority)


def test_a_client_without_authorities_goes_by_those_of_the_system(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
    (known,) = client_context(config(folder, "redis.ssl"), "redis.ssl").get_ca_certs()
    assert "trustme" in str(known["issuer"])


@pytest.mark.parametrize(
    ("files", "field"),
    [
        ({"ca": "nowhere.pem"}, "ca"),
        ({"ca": "none.pem"}, "ca"),
        ({"ca": "\0"}, "ca"),
        ({"certificate": "nowhere.pem"}, "certificate"),
        ({"certificate": "ca.pem"}, "certificate"),
        ({"certificate": "both.pem", "key": "none.pem"}, "certificate"),
    ],
)
def test_files_that_cannot_be_used(folder: Path, files: dict[str, str], field: str) -> None:
    with pytest.raises(ConfigError, match=rf"redis\.ssl\.{field}\.location: .*cannot be used: "):
        client_context(config(folder, "redis.ssl", **files), "redis.ssl")
