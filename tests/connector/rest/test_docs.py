"""The recipes of docs/rest.md, with the installed curl, in their order, on a node as the page describes it."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from deelog_connector.devkafka.ports import free_port
from tests.connector.rest.client import start_with_rest
from tests.interceptors.grid.cluster import Grid, eventually
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "rest.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the recipes are curl's")
def test_the_recipes_work_as_they_stand(grid: Grid) -> None:
    grid.config |= {"cache.name": "sessions", "cache.backups": "0"}
    port = free_port()
    (api,) = start_with_rest(grid, [port])
    recipes = re.findall(r"^curl .*localhost:8083.*$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(recipes) > 14
    for recipe in recipes:
        command = recipe.replace("localhost:8083", f"localhost:{port}")
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=True)
        assert "error_code" not in done.stdout, f"{recipe}: {done.stdout}"
    assert api.get("/connectors/deelog/config")["max.batch.size"] == "4096"
    assert api.get("/admin/loggers/deelog_connector.runtime")["level"] == "DEBUG"
    eventually(lambda: grid.nodes["n1"].stats()["resets"].get("offsets") == 1 and api.state() == "RUNNING")
