"""Recorded write commands of Redis' own tests, through each server: what the topics hold is what the server has.

The recording is of Redis 7.0.15's Tcl unit tests (BSD-3-Clause): 340,358 commands of 76 kinds in seven databases. Of it
`recorded/` has the first 24 commands of each kind behind each FLUSHALL, each 200th of the others, and none above 600
bytes: 4,926 commands. `replay.py` plays any other file.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.interceptors.redis.replay import commands, pieces, replayed
from tests.interceptors.redis.servers import NAMES
from tests.support.paths import INPUTS

CUT = Path(__file__).with_name("recorded") / "redis-7.0.15-unit-tests_cut.aof.xz"
WHOLE = INPUTS / "aof" / "redis-7.0.15-tcl-unit-tests.aof.zst"
DIGEST = b"162c1c2aebc273960e66f35aea7be2b336b612db"
"""Of Redis 7.0.15 behind the whole."""


def test_commands_of_a_file_and_where_it_is_cut() -> None:
    given = b"#TS:1\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n9\r\n*2\r\n$3\r\nDEL\r\n$4\r\n\r\n#*\r\n*1\r\n$4\r\nPING\r\n"
    found = list(commands(given))
    assert [database for database, _ in found] == [9, 9, 9]
    assert b"".join(words for _, words in found) == given[7:]
    assert [len(part) for part in pieces(found, 3, 1)] == [1, 1, 1]
    assert [each for part in pieces(found * 9, 5, 2) for each in part] == found * 9


@pytest.mark.parametrize("name", ["valkey", pytest.param("redis", marks=pytest.mark.slow)])
def test_what_a_recording_leaves_is_in_the_topics(tmp_path: Path, name: str) -> None:
    asyncio.run(replayed(name, tmp_path, CUT, 12, 1))


@pytest.mark.slow
@pytest.mark.skipif(not WHOLE.is_file(), reason=f"the whole is too large for the project, and {WHOLE} is not there")
@pytest.mark.parametrize("name", NAMES)
def test_what_the_whole_recording_leaves_is_in_the_topics(tmp_path: Path, name: str) -> None:
    digest = asyncio.run(replayed(name, tmp_path, WHOLE, 4, 1))
    assert name != "redis" or digest == DIGEST
