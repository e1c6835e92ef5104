"""Grids with an API."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interceptors.grid.cluster import Grid
from tests.support.kafka import Broker

# None of these tests depends on how soon a dead node is detected.
_PATIENT = {"cache_failure_timeout_ms": "3000"}


@pytest.fixture
def grid(kafka: Broker, prefix: str, tmp_path: Path) -> Iterator[Grid]:
    """A grid without nodes yet."""
    found = Grid(tmp_path, kafka.bootstrap, prefix, **_PATIENT)
    try:
        yield found
    finally:
        found.end()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server and a client that it signed, and a stranger that signed itself."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    encrypted = ("-keyout", "encrypted.pem", "-out", "encrypted.pem", "-passout", "pass:geheim", "-subj", "/CN=e")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    for name in ("ca", "stranger"):
        openssl("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    for name in ("server", "client"):
        openssl("req", *key[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
    openssl("req", "-x509", *key[:4], *encrypted)
    both = (folder / "server.pem").read_text() + (folder / "server.key").read_text()
    (folder / "both.pem").write_text(both)
    return folder
