"""Fetch the pinned jars of `jars.toml` once into the user's cache directory, verify them, reuse them.

Weighed in docs/decisions.md, "How jars are fetched".

The repository is Maven Central (its address comes from jgo) or DEELOG_MAVEN_REPOSITORY; the jars go to
`jars` in the cache directory (`deelog_schemas.java.cache_dir`). pooch writes to a temporary name, verifies and
renames, so processes that fetch at once cannot spoil each other's files. HTTPS is verified against the system's
trust store, not against a bundled one, so that a proxy with its own CA works.
"""

from __future__ import annotations

import logging
import os
import ssl
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from deelog_connector.devkafka.errors import DownloadError, SetupError
from deelog_schemas.java import cache_dir

__all__ = ["SETS", "Jar", "fetch", "pinned"]

SETS = ("kafka", "spark-kafka", "spark-delta", "spark-tables", "jdbc", "apicurio", "connect", "debezium", "flink")
_PARALLEL = 4
_RETRIES = 3
_TIMEOUT_SECONDS = 30
_CHUNK_BYTES = 1 << 16
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
    the remedy. Progress goes to stderr: a bar on a terminal, two lines elsewhere, nothing when all is there.
    """
    jars, folder = pinned(set_name), cache_dir() / "jars"
    hashes = _pooch().hashes
    missing = [
        jar
        for jar in jars
        if not (folder / jar.name).is_file() or hashes.file_hash(str(folder / jar.name)) != jar.sha256
    ]
    if missing:
        _download(set_name, missing, folder)
    return [folder / jar.name for jar in jars]


def _download(set_name: str, jars: list[Jar], folder: Path) -> None:
    from requests.exceptions import RequestException
    from tqdm import tqdm

    pooch, base, total = _pooch(), _repository(), sum(jar.size for jar in jars)
    pooch.get_logger().setLevel(logging.WARNING)
    client = pooch.create(
        path=folder,
        base_url=base,
        registry={jar.name: f"sha256:{jar.sha256}" for jar in jars},
        urls={jar.name: base + jar.path for jar in jars},
        retry_if_failed=_RETRIES,
    )
    quiet = not sys.stderr.isatty()
    if quiet:
        _say(f"fetching {len(jars)} jars of {set_name} ({total / 1e6:.0f} MB) into {folder}")
    with (
        ThreadPoolExecutor(_PARALLEL, thread_name_prefix="jars") as pool,
        tqdm(total=total, unit="B", unit_scale=True, desc=f"{set_name} jars", disable=quiet) as bar,
    ):
        running = {pool.submit(client.fetch, jar.name, downloader=_get): jar for jar in jars}
        for done in as_completed(running):
            jar = running[done]
            try:
                done.result()
            except (RequestException, ValueError, OSError) as error:
                pool.shutdown(cancel_futures=True)
                raise _explained(jar, base + jar.path, folder, error) from error
            bar.update(jar.size)
    if quiet:
        _say(f"fetched {set_name}")


def _get(url: str, output: str, client: object) -> None:
    """pooch's downloader, but one that closes the connection also where the answer is an error."""
    import requests

    with (
        requests.get(url, stream=True, timeout=_TIMEOUT_SECONDS, verify=trust_store()) as response,
        Path(output).open("wb") as file,
    ):
        response.raise_for_status()
        for chunk in response.iter_content(_CHUNK_BYTES):
            file.write(chunk)


def _explained(jar: Jar, url: str, folder: Path, error: Exception) -> DownloadError:
    from requests.exceptions import HTTPError, RequestException, SSLError

    if isinstance(error, SSLError):
        remedy = "name your proxy's certificates in SSL_CERT_FILE"
    elif isinstance(error, HTTPError):
        remedy = "name a Maven repository that has it in DEELOG_MAVEN_REPOSITORY"
    elif isinstance(error, RequestException):
        remedy = "connect to the network (or set HTTPS_PROXY, or a mirror in DEELOG_MAVEN_REPOSITORY) and try again"
    elif isinstance(error, OSError):
        remedy = f"make {folder} writable, or name another folder in DEELOG_CACHE_DIR"
    else:
        remedy = f"what {url} sends is not the pinned file; set DEELOG_MAVEN_REPOSITORY to an unaltered mirror"
    return DownloadError(f"{jar.coordinate} could not be fetched from {url} ({type(error).__name__}): {remedy}")


def trust_store() -> str | bool:
    """The file of certificates to verify HTTPS with: the environment's, else the system's, else (True) certifi's."""
    named = [os.environ[name] for name in _TRUST_VARIABLES if os.environ.get(name)]
    if named:
        return named[0]
    system = [ssl.get_default_verify_paths().cafile, *_TRUST_STORES]
    return next((path for path in system if path and Path(path).is_file()), True)


def _repository() -> str:
    named = os.environ.get("DEELOG_MAVEN_REPOSITORY")
    if not named:
        from jgo.constants import MAVEN_CENTRAL_URL

        named = str(MAVEN_CENTRAL_URL)
    return named.rstrip("/") + "/"


def _pooch() -> Any:  # a module without types
    """pooch, imported late: it belongs to the extra `embedded`, and the command line loads without it."""
    try:
        import pooch
        import tqdm  # noqa: F401  # said here rather than in the middle of a download
    except ImportError as error:
        raise SetupError(f"{error.name} is missing: install deelog[embedded]") from error
    return pooch


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
