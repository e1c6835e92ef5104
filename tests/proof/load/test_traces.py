"""Traces: what is read is what is written there, and the recorded histories end as they must."""

from __future__ import annotations

import itertools
import lzma
from pathlib import Path
from typing import Any

import pytest
import zstandard

from deelog_proof.load.traces import (
    TraceError,
    Write,
    differing_ids,
    final_of,
    read_final,
    read_trace,
    replay,
    value_of,
)
from tests.support.paths import INPUTS

TRACES = INPUTS / "traces"
CUT = Path(__file__).parent / "traces" / "githist_valkey_cut.tsv"
"""Three folders of a recorded history; the list beside it is git's own."""
LINES = (
    "#source a comment\n"
    "1\t1\t100\tc\ta\t\t0123456789abcdef\t40\n"
    "2\t1\t100\tc\tb c\t\tfedcba9876543210\t-1\n"
    "3\t2\t90\tr\ta\td\t0123456789abcdef\t5000\n"
    "4\t2\t90\tu\tb c\t\taaaaaaaaaaaaaaaa\t0\n"
    "5\t3\t91\td\tb c\t\t\t\n"
)
WRITES = [
    Write(b"a", b"0123456789abcdef0123456789abcdef01234567"),
    Write(b"b c", b"fedcba9876543210"),
    Write(b"a", None),
    Write(b"d", b"0123456789abcdef" * 4),
    Write(b"b c", b"aaaaaaaaaaaaaaaa"),
    Write(b"b c", None),
]


@pytest.mark.parametrize("suffix", ["", ".zst", ".xz"])
def test_githist_in_every_compression(tmp_path: Path, suffix: str) -> None:
    raw = LINES.encode()
    packed = {"": raw, ".zst": zstandard.compress(raw), ".xz": lzma.compress(raw)}[suffix]
    path = tmp_path / f"t.tsv{suffix}"
    path.write_bytes(packed)
    assert list(read_trace(path, 64)) == WRITES


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1\t1\t1\tc\ta\t\tx\n", "7 columns, not 8"),
        ("1\t1\t1\tq\ta\t\tx\t1\n", "op is 'q'"),
        ("1\t1\t1\tc\t\t\tx\t1\n", "the key is empty"),
        ("1\t1\t1\tr\ta\t\tx\t1\n", "a rename without new_key"),
        ("1\t1\t1\tc\ta\t\t\t1\n", "without value_id"),
        ("1\t1\t1\tc\ta\t\tx\tmuch\n", "much"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "t.tsv"
    path.write_text(LINES + line)
    with pytest.raises(TraceError, match=rf"t\.tsv:7: .*{problem}"):
        list(read_trace(path))


@pytest.mark.parametrize("suffix", [".zst", ".xz", ""])
def test_a_damaged_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t.tsv{suffix}"
    path.write_bytes(b"\xff\xfe\xfd not what the name says")
    with pytest.raises(TraceError, match=rf"t\.tsv{suffix}"):
        list(read_trace(path))


def test_a_trace_is_read_as_it_goes(tmp_path: Path) -> None:
    """The first writes of a trace come before its end is looked at: memory does not grow with the file."""
    path = tmp_path / "t.tsv.zst"
    with zstandard.open(path, "wt") as out:
        out.write(LINES)
        for number in range(300_000):
            out.write(f"{number}\t1\t1\tu\tk{number}\t\t0123456789abcdef\t1\n")
        out.write("damaged\n")
    assert list(itertools.islice(read_trace(path, 64), len(WRITES))) == WRITES
    with pytest.raises(TraceError, match=r"t\.tsv\.zst:300007"):
        for _ in read_trace(path):
            pass


@pytest.mark.parametrize(("size", "length"), [(-1, 16), (0, 16), (15, 16), (17, 17), (64, 64), (1 << 40, 100)])
def test_value_is_the_id_repeated(size: int, length: int) -> None:
    value = value_of("0123456789abcdef", size, 100)
    assert len(value) == length
    assert (b"0123456789abcdef" * 10).startswith(value)


def recorded(name: str) -> Any:
    path = TRACES / name
    reason = f"the whole histories are too large for the project, and {path} is not there"
    return pytest.param(path, marks=pytest.mark.skipif(not path.is_file(), reason=reason), id=name)


@pytest.mark.parametrize(
    "path", [CUT, recorded("githist_valkey.tsv.zst"), recorded("githist_debezium.tsv.zst")], ids=lambda path: path.name
)
def test_a_recorded_history_ends_at_its_list(path: Path) -> None:
    listed = final_of(path)
    assert listed is not None
    final = read_final(listed)
    state = replay(read_trace(path))
    assert differing_ids(state, final) == []
    some = min(state)
    assert differing_ids({**state, some: b"another"}, final) == [some]
    assert differing_ids({k: v for k, v in state.items() if k != some}, final) == [some]
    assert differing_ids({**state, b"more": b"x"}, final) == [b"more"]


def test_the_list_is_found_whatever_the_compression(tmp_path: Path) -> None:
    listed = tmp_path / "t.final.tsv.xz"
    assert final_of(tmp_path / "t.tsv.zst") is None
    listed.write_bytes(lzma.compress(b"a\t0123456789abcdef\n"))
    for name in ("t.tsv.zst", "t.tsv.xz", "t.tsv"):
        assert final_of(tmp_path / name) == listed
    assert read_final(listed) == {b"a": b"0123456789abcdef"}
