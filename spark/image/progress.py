"""The diff job's health check: exit code 0 if it has told its totals since this container started.

Weighed: asking for the process (it is the container's first: dead, there is no container) and Spark's own interface
(off, and a port more). The totals file is written once the query runs, and it outlives the container in its volume;
the entry point's configuration file tells when this start was.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

TOTALS = Path(os.environ.get("CONNECT_DIFF_CHECKPOINT_LOCATION", "/var/lib/deelog/checkpoint")) / "progress.json"

started = max((path.stat().st_mtime for path in Path("/tmp").glob("deelog-*.json")), default=0.0)
sys.exit(None if TOTALS.exists() and TOTALS.stat().st_mtime >= started else f"{TOTALS} is not written yet")
