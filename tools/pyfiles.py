"""Builds what `spark-submit --py-files` takes: the diff job as one zip, the same bytes from the same sources."""

from __future__ import annotations

import argparse
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas/deelog_schemas", "spark/deelog_spark")
"""The job, and all that it imports of ours."""
_WHEN = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16


def build(folder: Path) -> Path:
    """Writes `deelog-pyfiles-<version>.zip` into `folder`; its path."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    path = folder / f"deelog-pyfiles-{version}.zip"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as zipped:
        for package in (ROOT / name for name in PACKAGES):
            for file in sorted((*package.rglob("*.py"), *package.rglob("*.avsc"))):
                # Neither the clock nor the file's own mode: nothing but names and contents tells two builds apart.
                entry = zipfile.ZipInfo(file.relative_to(package.parent).as_posix(), _WHEN)
                entry.external_attr, entry.create_system = _MODE, 3
                # zlib's bytes differ from build to build of zlib: stored ones do not.
                zipped.writestr(entry, file.read_bytes(), zipfile.ZIP_STORED)
    return path


def main() -> None:
    """Prints the path of the zip."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    sys.stdout.write(f"{build(parser.parse_args().folder)}\n")


if __name__ == "__main__":
    main()
