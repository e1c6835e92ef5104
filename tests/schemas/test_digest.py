"""The digest of a segment's entries."""

from __future__ import annotations

import hashlib
from functools import reduce
from operator import xor

from hypothesis import given, settings
from hypothesis import strategies as st

from deelog_schemas.digest import digest_of, entry_digest, format_digest

PAIRS = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=10)


@settings(deadline=None)
@given(PAIRS, st.randoms(use_true_random=False))
def test_it_is_the_sum_of_the_first_eight_bytes_in_any_order(pairs: list[tuple[bytes, bytes]], random: object) -> None:
    total = 0
    for key, value in pairs:
        text = f"{len(key):08x}{key.hex()}{value.hex()}"
        total += int(hashlib.sha256(bytes.fromhex(text)).hexdigest()[:16], 16)
    expected = f"{total % 2**64:016x}"
    random.shuffle(pairs)  # type: ignore[attr-defined]
    assert digest_of(pairs) == expected
    assert format_digest(sum(entry_digest(k, v) for k, v in pairs)) == expected


def test_known_digests() -> None:
    assert digest_of([]) == "0" * 16
    assert digest_of([(b"key", b"value")]) == "9c55d2f17341fb6a"


def test_where_the_key_ends_matters() -> None:
    assert digest_of([(b"ab", b"c")]) != digest_of([(b"a", b"bc")])


def test_equal_terms_do_not_cancel_out() -> None:
    pair = (b"k", b"v")
    assert reduce(xor, [entry_digest(*pair)] * 2) == 0
    assert digest_of([pair, pair]) != digest_of([])


def test_the_sum_wraps_around() -> None:
    assert format_digest(2**64 + 5) == "0000000000000005"
