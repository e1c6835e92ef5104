"""docs/transforms.md, followed literally: its files, its commands and their output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.kafka import Broker
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "transforms.md"
BIN = Path(sys.executable).parent


def test_the_example_runs_and_prints_what_the_page_says(kafka: Broker, prefix: str, tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    # Only the address of Kafka and the prefix differ.
    mine = page.replace("localhost:9092", kafka.bootstrap).replace("=shop\n", f"={prefix}\n")
    mine = mine.replace('"shop.orders"', f'"{prefix}.orders"')
    files = re.findall(r"^`([a-z.]+)`:\n\n```[a-z]+\n(.*?)^```", mine, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == ["cards.py", "orders.properties", "shop.py"]
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    (commands,) = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (printed,) = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    start, *rest = commands.splitlines()
    assert start == "deelog kafka start"  # the test has a Kafka already
    done = subprocess.run(
        ["bash", "-euc", "\n".join(rest)],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == printed
