"""The way to the API: none without a port, an error without the extra."""

from __future__ import annotations

import builtins
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from deelog_connector.errors import MissingExtraError
from deelog_connector.rest import served
from deelog_schemas.config import parse
from tests.connector.cache import run
from tests.connector.rest.fakes import GIVEN, FakeLifecycle

CONFIG = parse(GIVEN | {"rest.port": "8083"})
SERVER = "deelog_connector.rest.server"


def serve(config: Any = CONFIG, metrics: Any = None) -> Any:
    """What `served` gives."""
    found: list[Any] = []

    async def work() -> None:
        found.append(await served(config, FakeLifecycle().real, metrics))

    run(work(), 20)
    return found[0]


def test_without_a_port_there_is_no_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, SERVER, None)
    assert serve(parse(GIVEN)) is None


def test_with_a_port_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Server:
        def __init__(self, *given: Any) -> None:
            calls.append(given)

        async def start(self) -> None:
            calls.append("start")

    monkeypatch.setitem(sys.modules, SERVER, SimpleNamespace(RestServer=Server))
    made = serve(metrics="page")
    assert isinstance(made, Server)
    (config, lifecycle, metrics), started = calls
    assert (config, lifecycle.name, metrics, started) == (CONFIG, "shop", "page", "start")


@pytest.mark.parametrize("missing", ["uvicorn.config", "deelog_connector.rest.nothing"])
def test_a_package_that_is_missing_names_the_extra_but_a_module_of_ours_is_a_bug(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    real = builtins.__import__

    def imported(name: str, *given: Any, **named: Any) -> Any:
        if name == SERVER:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name, *given, **named)

    monkeypatch.delitem(sys.modules, SERVER, raising=False)
    monkeypatch.setattr(builtins, "__import__", imported)
    with pytest.raises((ModuleNotFoundError, MissingExtraError)) as raised:
        serve()
    if missing.startswith("deelog"):
        assert isinstance(raised.value, ModuleNotFoundError)
    else:
        assert str(raised.value) == (
            "deelog rest.port needs uvicorn.config, which is not installed: pip install 'deelog[rest]'"
        )
