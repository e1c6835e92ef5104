"""Recorded histories as writes of a cache: the githist format, plain, `.xz` or `.zst`.

A githist file is a repository's history as changes of a key-value store: tab separated, lines that begin with `#`
are comments, columns `seq txn ts op key new_key value_id size`. `op` is `c`, `u`, `d` or `r` (a rename: delete of
`key`, then create of `new_key`). The value of an entry is its `value_id` repeated up to `size` bytes.

Weighed in docs/decisions.md, "Traces are read line by line".
"""

from __future__ import annotations

import io
import lzma
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import zstandard

from deelog_schemas.errors import DeelogError

COLUMNS = 8
MAX_VALUE = 1024
"""Default cap of a value, bytes: the traces' own sizes run to megabytes."""
_MAX_LINE = 1 << 20
_SUFFIXES = (".zst", ".xz")


class TraceError(DeelogError):
    """A trace cannot be read; the message has file, line, and what was expected."""

    exit_code = 2


class Write(NamedTuple):
    """One write of a client. `value` is None for a delete; `ttl_ms` is the time to live in milliseconds or None."""

    key: bytes
    value: bytes | None
    ttl_ms: int | None = None


def read_trace(path: Path, max_value: int = MAX_VALUE) -> Iterator[Write]:
    """The writes of a githist trace, in order; values are cut at `max_value` bytes.

    Raises `TraceError` at a malformed line.
    """
    for number, columns in _rows(path, COLUMNS):
        try:
            yield from _writes(columns, max_value)
        except ValueError as error:
            raise TraceError(f"{path}:{number}: {error}") from error


def final_of(path: Path) -> Path | None:
    """The file beside a trace that lists its final state (`X.final.tsv`, compressed or not), or None."""
    name = path.name
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    stem = name.removesuffix(".tsv")
    candidates = (path.with_name(f"{stem}.final.tsv{suffix}") for suffix in ("", *_SUFFIXES))
    return next((path for path in candidates if path.is_file()), None)


def read_final(path: Path) -> dict[bytes, bytes]:
    """Value id by key in the history's final state."""
    return {columns[0].encode(): columns[1].encode() for _, columns in _rows(path, 2)}


def value_of(value_id: str, size: int, max_value: int) -> bytes:
    """`value_id` repeated up to `size` bytes, at most `max_value`; once where that is shorter than the id itself."""
    unit = value_id.encode()
    wanted = max(min(size, max_value), len(unit))
    return (unit * -(-wanted // len(unit)))[:wanted]


def replay(writes: Iterable[Write]) -> dict[bytes, bytes]:
    """The state after the writes, if nothing expires."""
    state: dict[bytes, bytes] = {}
    for write in writes:
        if write.value is None:
            state.pop(write.key, None)
        else:
            state[write.key] = write.value
    return state


def differing_ids(entries: dict[bytes, bytes], final: dict[bytes, bytes]) -> list[bytes]:
    """The keys in which a state differs from that of `read_final`."""
    return sorted(
        key
        for key in entries.keys() | final.keys()
        if key not in final or entries.get(key, b"")[: len(final[key])] != final[key]
    )


def _writes(columns: list[str], max_value: int) -> Iterator[Write]:
    _, _, _, op, key, new_key, value_id, size = columns
    if not key:
        raise ValueError("the key is empty")
    if op in ("d", "r"):
        yield Write(key.encode(), None)
        if op == "d":
            return
        if not new_key:
            raise ValueError("a rename without new_key")
        key = new_key
    elif op not in ("c", "u"):
        raise ValueError(f"op is {op!r}, not one of c, u, d, r")
    if not value_id:
        raise ValueError(f"op {op} without value_id")
    yield Write(key.encode(), value_of(value_id, int(size or -1), max_value))


def _rows(path: Path, columns: int) -> Iterator[tuple[int, list[str]]]:
    number = 0
    try:
        with _opened(path) as lines:
            while line := lines.readline(_MAX_LINE):
                number += 1
                if line.startswith("#"):
                    continue
                fields = line.rstrip("\n").split("\t")
                if len(fields) != columns:
                    problem = f"{len(fields)} columns, not {columns}: this is no githist trace"
                    raise TraceError(f"{path}:{number}: {problem}")
                yield number, fields
    except (OSError, UnicodeDecodeError, lzma.LZMAError, zstandard.ZstdError, EOFError) as error:
        raise TraceError(f"{path}: cannot be read after line {number}: {error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    with path.open("rb") as raw:
        if path.suffix == ".zst":
            with zstandard.ZstdDecompressor().stream_reader(raw) as decompressed:
                # newline="\n": a key may hold a carriage return.
                yield io.TextIOWrapper(decompressed, "utf-8", newline="\n")
        elif path.suffix == ".xz":
            with lzma.open(raw) as stream:
                yield io.TextIOWrapper(stream, "utf-8", newline="\n")
        else:
            yield io.TextIOWrapper(raw, "utf-8", newline="\n")
