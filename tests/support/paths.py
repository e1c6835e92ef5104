"""Where things lie, for tests at any depth of the tree."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
"""The project's own folder."""
INPUTS: Final = ROOT.parent / "shared" / "inputs"
"""Recorded data beside the project, too large for it. Tests that read it say so in their skip's reason."""
