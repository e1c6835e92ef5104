"""Paths for tests at any depth of the tree."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
"""The project's folder."""
INPUTS: Final = ROOT.parent / "shared" / "inputs"
"""Recorded data next to the project, too large to be part of it. A test without its data is skipped and says so."""
