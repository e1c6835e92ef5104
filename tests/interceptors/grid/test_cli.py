"""`deelog node`: how many clients the process may have."""

from __future__ import annotations

import resource

import pytest

from deelog_interceptors.grid.cli import RESERVED_FILES, most_connections

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "allowed"),
    [
        (1024, 1_048_576, 1000 + RESERVED_FILES, 1000),
        (1024, NO_LIMIT, 1000 + RESERVED_FILES, 1000),
        (1000 + RESERVED_FILES, 1_048_576, None, 1000),
        (NO_LIMIT, NO_LIMIT, None, 1000),
        (1024, 1024, 1024, 1024 - RESERVED_FILES),
        (64, 64, 64, 32),
    ],
)
def test_clients_get_what_open_files_are_left(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None, allowed: int
) -> None:
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append((kind, limits)))
    assert most_connections(1000) == allowed
    assert asked == ([] if raised is None else [(resource.RLIMIT_NOFILE, (raised, hard))])
