"""The schema registry. It is asked at the start: to register our schemas, and for those of the topic's records.

The client is confluent-kafka's own; subjects are those of TopicNameStrategy, `<topic>-key` and `<topic>-value`. All
requests are made before the first record. If the registry fails later, only readers that meet a schema registered
since then are affected. Weighed in docs/decisions.md, "Schemas are read at the start".

A registry, or a proxy before it, may answer anything: every answer is bounded in time and size, and a bad one becomes
one error that names address, subject and remedy.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_never,
    wait_random_exponential,
)

from deelog_schemas.avro.schema import NO_SCHEMA, Part, canonical, registry_prefix
from deelog_schemas.config import Config
from deelog_schemas.errors import RecordError, RegistryAwayError, RegistryError

log = logging.getLogger(__name__)

T = TypeVar("T")

START_SECONDS: Final = 60.0
"""How long a start retries a registry that does not answer, even if `errors.max.retries` allows more."""
REQUEST_SECONDS: Final = 10.0
"""The longest time that one answer may take."""
ANSWER_BYTES: Final = 4 << 20
VERSIONS: Final = 200
"""How many versions of a subject are read: the newest ones."""
_SHOWN: Final = 300
_REFUSED: Final = (409, 422)
_READ_ONLY: Final = 42205


class Registry:
    """The registry of `<part>.converter.schema.registry.url`. A context manager.

    An answer may take `request_seconds`; `clock` says when it has, and when a start has asked for START_SECONDS.
    """

    def __init__(
        self,
        config: Config,
        part: str,
        request_seconds: float = REQUEST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request_seconds, self._clock = request_seconds, clock
        self._fields = f"{part}.converter"
        urls = config[f"{self._fields}.schema.registry.url"]
        self.url = ",".join(urls)
        self._retries: int = config["errors.max.retries"]
        self._longest = config["retriable.restart.connector.wait.ms"] / 1000
        self._registers: bool = config["value.converter.auto.register.schemas"]
        settings: dict[str, Any] = {"url": self.url, "timeout": request_seconds, "max.retries": 0}
        secret = config.secret("value.converter.basic.auth.user.info")
        if secret is not None:
            settings["basic.auth.user.info"] = secret
        authority = config["value.converter.schema.registry.ssl.ca.location"]
        if authority is not None:
            settings["ssl.ca.location"] = authority
        try:
            self._client = SchemaRegistryClient(settings)
        except OSError as error:  # an unreadable file, or one without a certificate
            raise RegistryError(f"value.converter.schema.registry.ssl.ca.location = {authority!r}: {error}") from error
        except ValueError as error:  # the message leaves out the value, which is a secret
            raise RegistryError("value.converter.basic.auth.user.info: must be user:password") from error
        # The client reads an answer of any length into memory. Only here can it be bounded before that.
        session = self._client._rest_client.session
        session.event_hooks = {"response": [self._bound]}
        session.headers["Accept-Encoding"] = "identity"

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _bound(self, response: httpx2.Response) -> None:
        packed = response.headers.get("Content-Encoding", "identity")
        if packed != "identity":  # not asked for, and it may unpack to any size
            raise httpx2.DecodingError(f"an answer in encoding {packed}")
        response.stream = _Bounded(response.stream, self._request_seconds, self._clock)

    def own_id(self, subject: str, text: str) -> int:
        """The id of our schema under a subject. Registers the schema if that is needed and allowed."""
        ask = self._client.register_schema if self._registers else self._lookup
        schema_id = self._asked(subject, lambda: ask(subject, Schema(text, "AVRO")))
        return _id_in(schema_id, self.url, subject)

    def _lookup(self, subject: str, schema: Schema) -> Any:
        return self._client.lookup_schema(subject, schema).schema_id

    def versions(self, subject: str) -> dict[bytes, str]:
        """The schemas of a subject, by the prefix that names them; empty where there is no such subject."""

        def ask() -> dict[bytes, str]:
            try:
                numbers = self._client.get_versions(subject)
            except SchemaRegistryError as error:
                if error.http_status_code == 404:
                    return {}
                raise
            texts: dict[bytes, str] = {}
            for number in numbers[-VERSIONS:]:
                version = self._client.get_version(subject, number)
                text = str(version.schema.schema_str)
                canonical(text)  # raises now for a text that is not an Avro schema
                texts[registry_prefix(_id_in(version.schema_id, self.url, subject))] = text
            return texts

        return self._asked(subject, ask)

    def _asked(self, subject: str, ask: Callable[[], T]) -> T:
        until = self._clock() + START_SECONDS
        enough = stop_after_attempt(1 + self._retries) if self._retries >= 0 else stop_never

        def stop(state: RetryCallState) -> bool:
            return enough(state) or self._clock() >= until

        wait = wait_random_exponential(multiplier=0.1, max=max(0.1, self._longest))
        retry = retry_if_exception_type(RegistryAwayError)
        for attempt in Retrying(retry=retry, stop=stop, wait=wait, before_sleep=_say, reraise=True):
            with attempt, self._explained(subject):
                return ask()
        raise AssertionError("tenacity raises or returns")

    @contextmanager
    def _explained(self, subject: str) -> Iterator[None]:
        where = f"the schema registry at {self.url}"
        try:
            yield
        except SchemaRegistryError as error:
            raise self._refused(where, subject, error) from error
        except httpx2.TransportError as error:
            if isinstance(error.__cause__, ssl.SSLError) or "CERTIFICATE" in str(error):
                remedy = "name its certificate authority in value.converter.schema.registry.ssl.ca.location"
                raise RegistryError(f"{where} cannot be trusted: {error}; {remedy}") from error
            problem = f"{where} does not answer about subject {subject}: {error or type(error).__name__}"
            raise RegistryAwayError(f"{problem}; see that it runs, and {self._fields}.schema.registry.url") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, *NO_SCHEMA, IndexError) as error:
            problem = f"{where} answers about subject {subject} what no registry does: {_cut(repr(error))}"
            remedy = f"see that {self._fields}.schema.registry.url is its address, path included"
            raise RegistryError(f"{problem}; {remedy} (Apicurio: /apis/ccompat/v7)") from error

    def _refused(self, where: str, subject: str, error: SchemaRegistryError) -> RegistryError:
        status, said = error.http_status_code, _cut(str(error.error_message))
        if error.error_code == _READ_ONLY:
            return RegistryError(
                f"{where} takes no schemas now, so not that of subject {subject}: {said}; let it take them, or "
                "register it there and set value.converter.auto.register.schemas to false"
            )
        if status in _REFUSED:
            return RegistryError(
                f"{where} refuses the schema of subject {subject} as incompatible with those registered: {said}; "
                "see whether another program or other cache.key.format, cache.value.format wrote the subject, and give "
                "the cache another topic.prefix, or set the subject's compatibility to NONE once"
            )
        if status in (401, 403):
            field = "value.converter.basic.auth.user.info"
            return RegistryError(f"{where} does not let us ask about subject {subject} (HTTP {status}): see {field}")
        if status == 404:
            path = f"see that {self._fields}.schema.registry.url has its path (Apicurio: /apis/ccompat/v7)"
            if self._registers:
                return RegistryError(f"{where} has no place to register subject {subject} (HTTP 404): {path}")
            register = "register it, or set value.converter.auto.register.schemas to true"
            return RegistryError(f"{where} does not have our schema under subject {subject}: {register}; {path}")
        if status == 429 or status >= 500:
            return RegistryAwayError(f"{where} cannot answer about subject {subject} (HTTP {status}): {said}")
        return RegistryError(
            f"{where} answers about subject {subject} with HTTP {status}: {said}; "
            f"see {self._fields}.schema.registry.url"
        )


def part_of(config: Config, part: str, schema: str, topic: str, also: str | None = None) -> Part:
    """Registers our schema for a topic, and reads the topic's others. `also`: another topic that is read, too.

    Keys of both topics are compared by their bytes, which include the schema id: it must be the same in both.
    """
    subjects = tuple(f"{name}-{part}" for name in (topic, also) if name is not None)
    with Registry(config, part) as registry:
        own = registry.own_id(subjects[0], schema)
        if part == "key" and any(registry.own_id(subject, schema) != own for subject in subjects[1:]):
            raise RegistryError(
                f"the schema registry at {registry.url} gives one schema another id under {' and '.join(subjects)}: "
                "a key would be other bytes in the diff topic; use a registry that gives ids by content "
                "(Apicurio: registry.ccompat.legacy-id-mode.enabled=false)"
            )
        known = {p: text for name in reversed(subjects) for p, text in registry.versions(name).items()}
    prefix = registry_prefix(own)
    return Part(prefix, {**known, prefix: schema}, subjects)


def find(config: Config, part: str, subjects: tuple[str, ...], prefix: bytes) -> str:
    """Looks up a schema that was registered since the start; raises `RecordError` where no subject here has it."""
    with Registry(config, part) as registry:
        for subject in subjects:
            text = registry.versions(subject).get(prefix)
            if text is not None:
                return text
    number = int.from_bytes(prefix[1:], "big")
    raise RecordError(f"schema id {number} is not registered under {' or '.join(subjects)}")


def _say(state: RetryCallState) -> None:
    assert state.outcome is not None
    log.warning("%s; trying again", state.outcome.exception())


def _id_in(answer: Any, url: str, subject: str) -> int:
    if type(answer) is int and 0 <= answer < 1 << 31:
        return answer
    raise RegistryError(f"the schema registry at {url} gives subject {subject} the schema id {_cut(repr(answer))}")


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class _Bounded(httpx2.SyncByteStream):
    """The body of an answer. Raises an error when it gets too long or takes too long."""

    def __init__(self, stream: Any, seconds: float, clock: Callable[[], float]) -> None:
        self._stream, self._seconds, self._clock = stream, seconds, clock
        self._until = clock() + seconds

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for chunk in self._stream:
            size += len(chunk)
            if size > ANSWER_BYTES:
                raise httpx2.DecodingError(f"an answer of more than {ANSWER_BYTES} bytes")
            if self._clock() > self._until:
                raise httpx2.ReadTimeout(f"an answer that is not over after {self._seconds:g} s")
            yield chunk

    def close(self) -> None:
        self._stream.close()
