"""Fetch the pinned jars of `jars.toml` once into the user's cache directory, verify them, reuse them.

Weighed in docs/decisions.md, "How jars are fetched".

The repository is Maven Central or DEELOG_MAVEN_REPOSITORY; the jars go to `jars` in the cache directory
(`deelog_schemas.java.cache_dir`). A jar has a temporary name until its checksum is verified, so processes that fetch at
once cannot spoil each other's files. HTTPS is verified against the system's trust store, so that a proxy with its own
certificates works.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import sys
import tempfile
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from importlib import resources
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, OpenerDirector, build_opener

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from deelog_connector.devkafka.errors import DownloadError
from deelog_schemas.java import cache_dir

SETS = ("kafka", "spark-kafka", "spark-delta", "spark-tables", "jdbc", "apicurio", "connect", "debezium", "flink")
_MAVEN_CENTRAL = "https://repo.maven.apache.org/maven2"
_PARALLEL = 4
_RETRIES = 3
_TIMEOUT_SECONDS = 30
_CHUNK_BYTES = 1 << 16
_NETWORK = (URLError, HTTPException, TimeoutError, ConnectionError, ssl.SSLError)
_TRUST_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
_TRUST_STORES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Arch, Gentoo
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # Alpine, BSD
)


@dataclass(frozen=True, slots=True)
class Jar:
    """One pinned jar: `coordinate` is `group:artifact:version[:classifier:type]`, `size` is in bytes."""

    coordinate: str
    sha256: str
    size: int

    @property
    def name(self) -> str:
        """The file's name, in the repository and in the cache directory."""
        _, artifact, version, *more = self.coordinate.split(":")
        classifier, kind = more or ("", "jar")
        return f"{artifact}-{version}{'-' * bool(classifier)}{classifier}.{kind}"

    @property
    def path(self) -> str:
        """The path below a Maven repository."""
        group, artifact, version, *_ = self.coordinate.split(":")
        return f"{group.replace('.', '/')}/{artifact}/{version}/{self.name}"


def pinned(set_name: str) -> list[Jar]:
    """The jars of one set of `jars.toml`, in the file's order; ValueError for a set that is none of SETS."""
    if set_name not in SETS:
        raise ValueError(f"jar set {set_name!r} is unknown: use one of {', '.join(SETS)}")
    text = (resources.files("deelog_connector.devkafka") / "jars.toml").read_text("utf-8")
    rows = tomllib.loads(text)[set_name]
    return [Jar(coordinate, row["sha256"], row["bytes"]) for coordinate, row in rows.items()]


def fetch(set_name: str) -> list[Path]:
    """The files of a set, fetched where they are missing or damaged, in the order of `pinned`.

    Every file is verified on every call (0.1 s for all of Kafka). DownloadError names the jar, the address and
    the remedy. Progress goes to stderr: a line that changes on a terminal, two lines elsewhere, nothing when all is
    there.
    """
    jars, folder = pinned(set_name), cache_dir() / "jars"
    missing = [jar for jar in jars if not _is_there(jar, folder)]
    if missing:
        _download(set_name, missing, folder)
    return [folder / jar.name for jar in jars]


def _is_there(jar: Jar, folder: Path) -> bool:
    path = folder / jar.name
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256


class _Altered(Exception):
    """What was sent is not the pinned file."""


class _Progress:
    """How much of a set is fetched, on stderr."""

    def __init__(self, set_name: str, jars: int, total: int, folder: Path) -> None:
        self._set, self._total, self._done = set_name, total, 0
        self._terminal, self._lock = sys.stderr.isatty(), threading.Lock()
        if not self._terminal:
            _say(f"fetching {jars} jars of {set_name} ({total / 1e6:.0f} MB) into {folder}\n")

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._terminal:
                _say(f"\r{self._set} jars: {self._done / 1e6:.0f} of {self._total / 1e6:.0f} MB")

    def end(self) -> None:
        _say("\n" if self._terminal else f"fetched {self._set}\n")


def _download(set_name: str, jars: list[Jar], folder: Path) -> None:
    base, opener = _repository(), build_opener(HTTPSHandler(context=_trusting()))
    progress = _Progress(set_name, len(jars), sum(jar.size for jar in jars), folder)
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="jars") as pool:
        retrying = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_attempt(1 + _RETRIES),
            wait=wait_exponential(max=10),
            reraise=True,
        )
        running = {pool.submit(retrying, _get, opener, base, jar, folder, progress): jar for jar in jars}
        for done in as_completed(running):
            jar = running[done]
            try:
                done.result()
            except (_Altered, OSError, HTTPException) as error:
                pool.shutdown(cancel_futures=True)
                raise _explained(jar, base + jar.path, folder, error) from error
    progress.end()


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, HTTPError):
        return error.code >= 500
    return isinstance(error, (_Altered, *_NETWORK))


def _get(opener: OpenerDirector, base: str, jar: Jar, folder: Path, progress: _Progress) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=folder, prefix=f".{jar.name}.")
    received = 0
    try:
        digest = hashlib.sha256()
        with os.fdopen(handle, "wb") as file, opener.open(base + jar.path, timeout=_TIMEOUT_SECONDS) as response:
            while chunk := response.read(_CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                received += len(chunk)
                progress.add(len(chunk))
        if digest.hexdigest() != jar.sha256:
            raise _Altered(f"{received} bytes instead of {jar.size}" if received != jar.size else "another checksum")
        os.replace(part, folder / jar.name)
    except BaseException as error:
        if isinstance(error, HTTPError):
            error.close()  # it holds the connection
        progress.add(-received)
        with suppress(FileNotFoundError):
            os.unlink(part)
        raise


def _explained(jar: Jar, url: str, folder: Path, error: Exception) -> DownloadError:
    reason = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
    if isinstance(reason, ssl.SSLError):
        remedy = "name your proxy's certificates in SSL_CERT_FILE"
    elif isinstance(error, HTTPError):
        remedy = "name a Maven repository that has it in DEELOG_MAVEN_REPOSITORY"
    elif isinstance(error, _NETWORK):
        remedy = "connect to the network (or set HTTPS_PROXY, or a mirror in DEELOG_MAVEN_REPOSITORY) and try again"
    elif isinstance(error, OSError):
        remedy = f"make {folder} writable, or name another folder in DEELOG_CACHE_DIR"
    else:
        remedy = f"what {url} sends is not the pinned file; set DEELOG_MAVEN_REPOSITORY to an unaltered mirror"
    what = f"{type(reason).__name__.removeprefix('_')}: {reason}"
    return DownloadError(f"{jar.coordinate} could not be fetched from {url} ({what}): {remedy}")


def _trusting() -> ssl.SSLContext:
    path = trust_store()
    try:
        if path is not None and Path(path).is_dir():
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        problem = f"the certificates in {path} cannot be read ({error}): correct SSL_CERT_FILE"
        raise DownloadError(problem) from error


def trust_store() -> str | None:
    """The certificates to verify HTTPS with: the environment's, else the system's, else (None) OpenSSL's own."""
    named = [os.environ[name] for name in _TRUST_VARIABLES if os.environ.get(name)]
    if named:
        return named[0]
    system = [ssl.get_default_verify_paths().cafile, *_TRUST_STORES]
    return next((path for path in system if path and Path(path).is_file()), None)


def _repository() -> str:
    return (os.environ.get("DEELOG_MAVEN_REPOSITORY") or _MAVEN_CENTRAL).rstrip("/") + "/"


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
