"""Pages of the documentation: their commands run as they stand, and their output is compared.

In namespaces of its own, by util-linux's `unshare`: a page's ports are fixed, and whoever runs the tests may have a
Kafka at 9092; and one kills nodes by the name of their file.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.system.ops.follow import Block, blocks, same

NAMESPACES = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
SECONDS = 1100


def can_follow() -> bool:
    """Whether there is redis-cli, which the pages use, and a kernel that gives namespaces to everybody."""
    if shutil.which("redis-cli") is None or shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.pages
@pytest.mark.skipif(not can_follow(), reason="needs redis-cli, and unshare with user namespaces")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param("docs/tutorial.md", marks=pytest.mark.slow),
        "docs/howto/own-cache.md",
        pytest.param(
            "docs/howto/redis-cluster.md",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server"),
            ],
        ),
    ],
)
def test_a_page_to_the_letter(page: str) -> None:
    shutil.rmtree(ROOT / "build" / Path(page).stem, ignore_errors=True)  # of a run that was interrupted
    command = [*NAMESPACES, sys.executable, "-m", "tests.system.ops.follow", page]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.splitlines()[-1].split()[0]) > (20 if "howto/own" not in page else 4)


def test_how_a_page_is_read() -> None:
    page = "a\n```sh\none\ntwo\n```\n```text\n1\n```\n\n```sh terminal=n1\nthree\n```\n```text terminal=n1\n3\n```\n"
    assert list(blocks(page)) == [
        Block("sh", "", "one\ntwo\n", 2),
        Block("text", "", "1\n", 6),
        Block("sh", "n1", "three\n", 10),
        Block("text", "n1", "3\n", 13),
    ]


def test_what_counts_as_the_same() -> None:
    assert same("n1@1795341431015 epoch 3 sequence 2") == same("n1@1795341430000 epoch 12 sequence 2")
    assert same("epoch 3 sequence 2") != same("epoch 3 sequence 3")
    assert same("c  session:1  - -> 1") != same("u  session:1  - -> 1")
