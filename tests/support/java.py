"""An environment without an installed Java, so that programs use the wheel of the extra `java`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def hide_java(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Removes every `java` from PATH and JAVA_HOME; other programs stay. `folder` must not exist."""
    folder.mkdir()
    parts = []
    for number, part in enumerate(os.environ["PATH"].split(os.pathsep)):
        kept = Path(part)
        if (kept / "java").exists():
            kept = folder / str(number)
            kept.mkdir()
            for program in Path(part).iterdir():
                if program.name != "java":
                    (kept / program.name).symlink_to(program)
        parts.append(str(kept))
    patch.setenv("PATH", os.pathsep.join(parts))
    patch.delenv("JAVA_HOME", raising=False)
