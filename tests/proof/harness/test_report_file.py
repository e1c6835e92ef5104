"""Which `--report` is refused before a run, and which is taken."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from deelog_proof.harness.report_file import ReportFile


def test_a_new_file_and_one_that_is_there_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.json").write_text("{}")
    for name in ("new.json", "old.json"):
        assert ReportFile().convert(str(tmp_path / name), None, None) == tmp_path / name
    monkeypatch.chdir(tmp_path)
    assert ReportFile().convert("r.json", None, None) == Path("r.json")
    assert [file.name for file in tmp_path.iterdir()] == ["old.json"]


def test_what_could_not_be_written_at_the_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(click.BadParameter, match=r"the folder .*none does not exist"):
        ReportFile().convert(str(tmp_path / "none" / "r.json"), None, None)
    with pytest.raises(click.BadParameter, match="is a directory"):
        ReportFile().convert(str(tmp_path), None, None)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(click.BadParameter, match="no file can be written into the folder"):
        ReportFile().convert(str(tmp_path / "r.json"), None, None)
