"""Each module of a room has a test of its own name: `core/scan.py`, `test_scan.py`."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

from tests.support.paths import ROOT

ROOMS: Final = (
    *("connector", "connector/cli", "connector/core", "connector/devkafka", "connector/kafka", "connector/metrics"),
    *("connector/rest", "connector/runtime", "connector/signals", "connector/transforms"),
    *("interceptors/cachetools", "interceptors/hosting", "interceptors/grid", "interceptors/grid/data"),
    *("interceptors/grid/replication", "interceptors/grid/resp", "interceptors/grid/topology", "interceptors/redis"),
    *("schemas", "schemas/avro", "schemas/config", "schemas/kafka"),
    *("proof/audit", "proof/conformance", "proof/demo", "proof/harness", "proof/load", "proof/memory"),
)
"""Folders below `<package>/deelog_<package>`; their tests are in the same folders below `tests/<package>`."""
WITHOUT: Final[set[str]] = set()
"""Modules that have none yet. This set may only shrink."""


def does_something(path: Path) -> bool:
    """Whether a function of a module has more than a docstring; others only declare."""
    tree = ast.parse(path.read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(len(f.body) > 1 or not isinstance(f.body[0], ast.Expr) for f in functions)


def has_tests(room: str, module: str) -> bool:
    """Whether a module has tests; those of a package itself have its name: `rest/__init__.py`, `test_rest.py`."""
    name = room.rpartition("/")[2] if module == "__init__" else module
    path = ROOT / "tests" / room / f"test_{name}.py"
    return path.exists() and "def test_" in path.read_text("utf-8")


@pytest.mark.parametrize("room", ROOMS)
def test_each_module_has_a_test_of_its_own_name(room: str) -> None:
    package, _, inner = room.partition("/")
    folder = ROOT / package / f"deelog_{package}" / inner
    modules = [path for path in folder.glob("*.py") if does_something(path)]
    assert modules
    without = {f"{room}/{path.stem}" for path in modules if not has_tests(room, path.stem)}
    assert without == {module for module in WITHOUT if module.rpartition("/")[0] == room}


@pytest.mark.parametrize("package", ["connector", "interceptors"])
def test_every_room_of_a_package_is_listed(package: str) -> None:
    folder = ROOT / package / f"deelog_{package}"
    doing = [path.parent.relative_to(folder).as_posix() for path in folder.rglob("*.py") if does_something(path)]
    assert {f"{package}/{room}".removesuffix("/.") for room in doing} <= set(ROOMS)
