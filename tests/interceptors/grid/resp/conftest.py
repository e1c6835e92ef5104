"""A served node and a client of it."""

from __future__ import annotations

import pytest

from tests.interceptors.grid.resp.served import Client, FakeNode


@pytest.fixture
def served() -> FakeNode:
    return FakeNode()


@pytest.fixture
def client(served: FakeNode) -> Client:
    return Client(served.clients)
