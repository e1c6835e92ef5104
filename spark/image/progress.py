"""The diff job's health check: exit code 0 if it has written its totals since this container started.

The totals file is in a volume that outlives the container; the entry point's configuration file has the time of this
start. Alternatives: docs/decisions.md.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

TOTALS = Path(os.environ.get("CONNECT_DIFF_CHECKPOINT_LOCATION", "/var/lib/deelog/checkpoint")) / "progress.json"

started = max((path.stat().st_mtime for path in Path("/tmp").glob("deelog-*.json")), default=0.0)
sys.exit(None if TOTALS.exists() and TOTALS.stat().st_mtime >= started else f"{TOTALS} is not written yet")
