"""Modules are small, and none needs itself: imports form no circle, those for type checkers alone included."""

from __future__ import annotations

from functools import cache
from graphlib import CycleError, TopologicalSorter

from tests.repo.test_import_direction import PACKAGES, imports, modules, parsed

MOST_LINES = 600
MOST_LINES_OF_CORE = 400
TOO_LONG: set[str] = set()
"""Modules that are longer all the same. Take out what got short enough; add nothing."""


@cache
def graph() -> dict[str, set[str]]:
    """The modules that each module imports by name."""
    paths = {module: path for package in PACKAGES for module, path in modules(package)}
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        found[module] = set()
        for _, name in imports(module, parsed(path), is_package=path.name == "__init__.py"):
            while name and name not in paths:
                name = name.rpartition(".")[0]
            if name and name != module:
                found[module].add(name)
    return found


def circle(modules_imported: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, the first one again at its end; empty where there is none."""
    try:
        TopologicalSorter(modules_imported).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_is_too_long() -> None:
    lengths = {
        module: len(path.read_text("utf-8").splitlines()) for package in PACKAGES for module, path in modules(package)
    }
    core = "deelog_connector.core."
    long = {m for m, lines in lengths.items() if lines > (MOST_LINES_OF_CORE if m.startswith(core) else MOST_LINES)}
    assert long == TOO_LONG


def test_imports_form_no_circle() -> None:
    assert circle(graph()) == []


def test_a_circle_is_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
