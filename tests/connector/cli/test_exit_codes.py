"""`deelog exit-codes`: the page of what a command ends with."""

from __future__ import annotations

import inspect
import re
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from deelog_connector import errors
from deelog_connector.cli import exit_codes
from deelog_schemas.errors import ConfigError, DeelogError, RecordError, RegistryError
from tests.support.paths import ROOT


def test_the_page_of_exit_codes_is_fresh() -> None:
    page = ROOT / "docs" / "reference" / "exit-codes.md"
    remedy = "stale: run `deelog exit-codes > docs/reference/exit-codes.md`"
    assert page.read_text(encoding="utf-8") == exit_codes.markdown(), remedy


def test_every_error_of_the_tree_is_drawn_with_its_code() -> None:
    tree = inspect.getdoc(errors) or ""
    drawn = {name: int(code) for name, code in re.findall(r"^[│ ├└─]*(\w+) +(\d+) ", tree, re.M)}
    mine = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, DeelogError)]
    mine += [ConfigError, RecordError, RegistryError]
    assert drawn == {one.__name__: one.exit_code for one in mine}


def test_the_command_shows_the_page_as_it_is() -> None:
    shown = CliRunner().invoke(exit_codes.exit_codes)
    assert (shown.exit_code, shown.stdout) == (0, exit_codes.markdown())


def test_errors_are_in_the_order_of_their_codes_and_those_of_one_have_no_row() -> None:
    for program in exit_codes.markdown().split("\n## ")[1:]:
        codes = [(int(code), name) for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \| .+ \|$", program, re.M)]
        assert codes == sorted(codes)
        assert len(codes) == program.count("\n| ") - 1 > 3
        assert {code for code, _ in codes} > {2, 4}
        assert 1 not in {code for code, _ in codes}


def test_a_row_is_one_line_whatever_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(DeelogError):
        """Either | or,
        on a second line."""

        exit_code = 7

    class Plain(DeelogError):
        """Has no code of its own."""

    module = SimpleNamespace(Odd=Odd, Plain=Plain, other=7, Text=str)
    monkeypatch.setattr(exit_codes, "import_module", lambda name: module)
    rows = [line for line in exit_codes.markdown().splitlines() if line.startswith("| 7")]
    assert rows == ["| 7 | `Odd` | Either &#124; or, on a second line. |"] * 2
    assert "Plain" not in exit_codes.markdown()
