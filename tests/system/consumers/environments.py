"""Python environments of their own for consumers whose pins clash with ours: made once, kept in the user's cache.

What is installed is named by the hash of its pins, so that another version is another folder. Weighed in
docs/decisions.md, "Environments of other consumers".
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from deelog_schemas.java import cache_dir

_PINS = Path(__file__).parent / "pins"


def python_of(name: str) -> Path:
    """The interpreter of the environment of `pins/<name>.txt`, made if it is not there yet."""
    pins = _PINS / f"{name}.txt"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(pins.read_bytes() + version.encode()).hexdigest()[:12]
    folder = cache_dir() / "environments" / f"{name}-{version}-{digest}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = folder.with_name(f"{folder.name}.{os.getpid()}")  # takes its name when it is whole
        uv = str(Path(sys.executable).with_name("uv"))
        try:
            subprocess.run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(made)], check=True)
            python = str(made / "bin" / "python")
            sync = [uv, "pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode", "--python", python]
            subprocess.run([*sync, str(pins)], check=True)
            made.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return folder / "bin" / "python"
