"""The generated load: the same for the same seed, and like that of a session store."""

from __future__ import annotations

import hashlib
import itertools

import orjson
import pytest

from deelog_proof.load.sessions import LONG_MS, SHORT_MS, session_store


def _digest(seed: int) -> str:
    digest = hashlib.sha256()
    for write in session_store(5000, seed):
        digest.update(repr(write).encode())
    return digest.hexdigest()[:16]


def test_same_seed_same_load_on_every_machine() -> None:
    assert _digest(7) == _digest(7) == "bebf8ea6032e2bc1"
    assert _digest(8) != _digest(7)


def test_the_load_is_like_a_session_store() -> None:
    writes = list(session_store(20_000, 3, 500))
    values = [write.value for write in writes if write.value is not None]
    assert len(set(values)) == len(values), "every value identifies its write"
    assert 0.06 < 1 - len(values) / len(writes) < 0.10
    assert max(map(len, values)) <= 500
    ttls = [write.ttl_ms for write in writes if write.value is not None]
    assert 0.10 < sum(t is not None and t < 6000 for t in ttls) / len(ttls) < 0.20
    assert {t for t in ttls if t is None or t > 6000} == {None, LONG_MS}
    per_key = sorted(
        (sum(1 for _ in group) for _, group in itertools.groupby(sorted(w.key for w in writes))), reverse=True
    )
    assert per_key[0] > 20 * per_key[len(per_key) // 2], "few keys are busy"


def test_as_many_writes_as_asked_for_by_few_keys_at_least() -> None:
    assert list(session_store(0, 1)) == []
    assert [len(list(session_store(count, 1))) for count in (1, 7)] == [1, 7]
    few, many = (len({write.key for write in session_store(count, 1)}) for count in (249, 5000))
    assert 30 < few <= 50
    assert 250 < many <= 1000


def test_a_value_is_cut_but_never_its_identity() -> None:
    whole = [write.value for write in session_store(500, 1) if write.value is not None]
    cut = [write.value for write in session_store(500, 1, 100) if write.value is not None]
    least = [write.value for write in session_store(500, 1, 16) if write.value is not None]
    assert {len(value) for value in cut if len(value) >= 100} == {100}
    for large, small, bare in zip(whole, cut, least, strict=True):
        identity = orjson.loads(large)
        for value in (small, bare):
            assert {**orjson.loads(value), "cart": ""} == {**identity, "cart": ""}
        assert orjson.loads(bare)["cart"] == ""
        assert identity["cart"].startswith(orjson.loads(small)["cart"])
    assert {len(orjson.loads(value)["cart"]) for value in whole} == {0, 20, 40, 80, 160, 320, 640}


def test_times_to_live_come_in_three_kinds() -> None:
    ttls = [write.ttl_ms for write in session_store(20_000, 1) if write.value is not None]
    short = [ttl for ttl in ttls if ttl is not None and ttl != LONG_MS]
    assert SHORT_MS[0] <= min(short) < SHORT_MS[0] + 100
    assert SHORT_MS[1] - 100 < max(short) < SHORT_MS[1]
    assert len(short) / len(ttls) == pytest.approx(0.15, abs=0.01)
    assert ttls.count(None) / len(ttls) == pytest.approx(0.20, abs=0.01)
