"""The file of `--report`, which is written at the end of a run: what would prevent that is said before the start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class ReportFile(click.Path):
    """A file that can be written, in a folder that is there. The value is a `Path`; wrong usage otherwise."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        file = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not file.parent.is_dir():
            self.fail(f"the folder {file.parent} does not exist", param, ctx)
        if not file.exists() and not os.access(file.parent, os.W_OK):
            self.fail(f"no file can be written into the folder {file.parent}", param, ctx)
        return file
