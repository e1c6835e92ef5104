"""Jars are fetched once and always verified. Every failure names its remedy."""

from __future__ import annotations

import hashlib
import io
import re
import ssl
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError, URLError

import pytest

from deelog_connector.devkafka import jars
from deelog_connector.devkafka.errors import DownloadError
from deelog_connector.devkafka.jars import Jar
from deelog_connector.devkafka.ports import free_port
from deelog_schemas.java import cache_dir

CONTENT = {f"org.example:part{n}:1.{n}": f"jar {n}".encode() * 1000 for n in range(6)}
PINNED = [Jar(name, hashlib.sha256(data).hexdigest(), len(data)) for name, data in CONTENT.items()]


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder and counts the requests."""

    def log_message(self, format: str, *args: object) -> None:
        assert isinstance(self.server, Repository)
        self.server.requests.append(self.path)


class Repository(ThreadingHTTPServer):
    """A Maven repository on this machine with the jars of PINNED."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[str] = []
        for jar in PINNED:
            self.file(jar).parent.mkdir(parents=True)
            self.file(jar).write_bytes(CONTENT[jar.coordinate])
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))

    def file(self, jar: Jar) -> Path:
        return self.folder / jar.path


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    server = Repository(tmp_path / "repository")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("DEELOG_MAVEN_REPOSITORY", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("DEELOG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "pinned", lambda name: PINNED)
    monkeypatch.setattr(jars, "_RETRIES", 0)
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_every_jar_is_pinned_once() -> None:
    for name in jars.SETS:
        rows = jars.pinned(name)
        assert len({jar.name for jar in rows}) == len(rows)
        for jar in rows:
            assert re.fullmatch(r"[\w.-]+:[\w.-]+:[\w.-]+(:[\w.-]+:[\w.-]+)?", jar.coordinate)
            assert re.fullmatch(r"[0-9a-f]{64}", jar.sha256)
            assert 0 < jar.size < 120_000_000  # Apicurio's archive has 109 MB, Flink's planner 42 MB
    assert len(jars.pinned("kafka")) == 46
    assert "org.apache.kafka:kafka_2.13:4.3.1" in [jar.coordinate for jar in jars.pinned("kafka")]
    assert len(jars.pinned("spark-kafka")) == 4


def test_what_is_no_jar_has_its_classifier_and_type_in_its_name() -> None:
    (archive,) = jars.pinned("apicurio")
    assert archive.name == "apicurio-registry-app-3.0.9-all.tar.gz"
    assert archive.path == f"io/apicurio/apicurio-registry-app/3.0.9/{archive.name}"


def test_an_unknown_set_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'nonsense' is unknown: use one of kafka, .*, debezium, flink"):
        jars.pinned("nonsense")


def test_fetched_once_in_order_and_reused(repository: Repository) -> None:
    first = jars.fetch("kafka")
    assert [path.read_bytes() for path in first] == list(CONTENT.values())
    assert sorted(repository.requests) == sorted("/" + jar.path for jar in PINNED)
    assert jars.fetch("kafka") == first
    assert len(repository.requests) == len(PINNED)


def test_a_damaged_file_is_fetched_again_and_it_alone(repository: Repository) -> None:
    files = jars.fetch("kafka")
    files[2].write_bytes(b"half a jar")
    repository.requests.clear()
    jars.fetch("kafka")
    assert files[2].read_bytes() == CONTENT[PINNED[2].coordinate]
    assert repository.requests == ["/" + PINNED[2].path]


def test_an_altered_jar_is_not_kept(repository: Repository) -> None:
    repository.file(PINNED[1]).write_bytes(b"something else")
    with pytest.raises(DownloadError, match=r"org.example:part1:1.1 .* is not the pinned file"):
        jars.fetch("kafka")
    assert not (cache_dir() / "jars" / PINNED[1].name).exists()


def test_a_jar_that_the_repository_lacks(repository: Repository) -> None:
    repository.file(PINNED[3]).unlink()
    with pytest.raises(DownloadError, match=r"part3:1.3 .*name a Maven repository that has it"):
        jars.fetch("kafka")


def test_no_network(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEELOG_MAVEN_REPOSITORY", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(DownloadError, match=r"\(ConnectionRefusedError: .*\): connect to the network"):
        jars.fetch("kafka")


def test_a_proxy_that_refuses_is_quoted(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEELOG_MAVEN_REPOSITORY", "https://maven.example")
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{repository.server_port}")
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{repository.server_port}")
    with pytest.raises(DownloadError, match=r"Tunnel connection failed: 501 .*\): connect .*HTTPS_PROXY"):
        jars.fetch("kafka")


def test_what_is_sent_in_part_is_fetched_again(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "_RETRIES", 1)
    cut, whole = repository.file(PINNED[4]), CONTENT[PINNED[4].coordinate]
    cut.write_bytes(whole[:100])
    said: list[str] = []
    monkeypatch.setattr(jars, "wait_exponential", lambda **_: lambda _: float(cut.write_bytes(whole) * 0))
    monkeypatch.setattr(jars, "_say", said.append)
    assert jars.fetch("kafka")[4].read_bytes() == whole
    assert said[-1] == "fetched kafka\n"


def test_certificates_that_are_not_there_are_named(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/no/such.pem")
    with pytest.raises(DownloadError, match=r"certificates in /no/such.pem cannot be read .*SSL_CERT_FILE"):
        jars.fetch("kafka")


def test_a_cache_that_cannot_be_written(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DEELOG_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match=r"name another folder in DEELOG_CACHE_DIR"):
        jars.fetch("kafka")


def test_many_at_once_all_get_whole_files(repository: Repository) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = [task.result() for task in [pool.submit(jars.fetch, "kafka") for _ in range(4)]]
    for paths in results:
        assert [path.read_bytes() for path in paths] == list(CONTENT.values())
    assert sorted(path.name for path in results[0][0].parent.iterdir()) == sorted(jar.name for jar in PINNED)


def test_trust_is_the_environments_then_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    system = tmp_path / "system.pem"
    system.touch()
    monkeypatch.setattr(jars, "_TRUST_STORES", (str(system),))
    monkeypatch.setattr("ssl.get_default_verify_paths", lambda: type("Paths", (), {"cafile": None}))
    assert jars.trust_store() == str(system)
    system.unlink()
    assert jars.trust_store() is None
    monkeypatch.setenv("SSL_CERT_FILE", "/own/ca.pem")
    assert jars.trust_store() == "/own/ca.pem"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/requests/ca.pem")
    assert jars.trust_store() == "/requests/ca.pem"


class Stderr(io.StringIO):
    """A stream that may be a terminal, and counts its flushes."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal, self.flushes = terminal, 0

    def isatty(self) -> bool:
        return self._terminal

    def flush(self) -> None:
        self.flushes += 1


@pytest.mark.parametrize(
    ("terminal", "shown"),
    [
        (True, "\rkafka jars: 2 of 4 MB\rkafka jars: 1 of 4 MB\n"),
        (False, "fetching 2 jars of kafka (4 MB) into /jars\nfetched kafka\n"),
    ],
)
def test_progress_is_a_line_that_changes_or_two_lines(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: str
) -> None:
    stderr = Stderr(terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    progress = jars._Progress("kafka", 2, 4_000_000, Path("/jars"))
    progress.add(2_000_000)
    progress.add(-1_000_000)
    progress.end()
    assert stderr.getvalue() == shown
    assert stderr.flushes == (3 if terminal else 2)


def test_where_all_is_there_nothing_is_said(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    jars.fetch("kafka")
    assert capsys.readouterr().err.splitlines()[-1] == "fetched kafka"
    jars.fetch("kafka")
    assert capsys.readouterr().err == ""


def test_of_what_is_refused_nothing_is_left(repository: Repository) -> None:
    for jar in PINNED:
        repository.file(jar).write_bytes(b"another")
    with pytest.raises(DownloadError, match=r"7 bytes instead of \d+\): what http.* sends is not the pinned file"):
        jars.fetch("kafka")
    assert list((cache_dir() / "jars").iterdir()) == []
    first = PINNED[0]
    for jar in PINNED:
        repository.file(jar).write_bytes(b"x" * jar.size)
    with pytest.raises(DownloadError, match="another checksum"):
        jars.fetch("kafka")
    assert not (cache_dir() / "jars" / first.name).exists()


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (HTTPError("u", 499, "", Message(), None), False),
        (HTTPError("u", 500, "", Message(), None), True),
        (HTTPError("u", 503, "", Message(), None), True),
        (jars._Altered("x"), True),
        (URLError(ConnectionRefusedError()), True),
        (TimeoutError(), True),
        (PermissionError(), False),
        (ValueError(), False),
    ],
)
def test_what_may_pass_is_tried_again(error: Exception, passes: bool) -> None:
    assert jars._may_pass(error) is passes


def test_a_certificate_that_is_not_trusted_has_a_remedy_of_its_own(tmp_path: Path) -> None:
    error = jars._explained(PINNED[0], "https://h/x.jar", tmp_path, URLError(ssl.SSLError("self-signed")))
    assert str(error).startswith("org.example:part0:1.0 could not be fetched from https://h/x.jar (SSLError: ")
    assert str(error).endswith(": name your proxy's certificates in SSL_CERT_FILE")
