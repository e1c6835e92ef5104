"""Where segments should be: owners per segment, evenly spread, moved as little as possible.

Weighed in docs/decisions.md, "Placement".
"""

from __future__ import annotations

from collections.abc import Sequence

Owners = tuple[str, ...]


def place(current: Sequence[Owners], members: Sequence[str], copies: int) -> list[Owners]:
    """The owners of each segment, the preferred primary first.

    `current` has one tuple per segment; owners not in `members` are replaced. Each segment gets `copies` owners, or as
    many as there are members. Owners and preferred primaries are both spread evenly. Same input, same output.
    """
    live = set(members)
    copies = min(copies, len(live))
    placed = [[owner for owner in owners if owner in live][:copies] for owners in current]
    if not any(placed):
        placed = [_block(number, len(placed), sorted(live), copies) for number in range(len(placed))]
    load = dict.fromkeys(sorted(live), 0)
    for owners in placed:
        for owner in owners:
            load[owner] += 1
    for owners in placed:
        while len(owners) < copies:
            lightest = min((member for member in load if member not in owners), key=lambda member: load[member])
            owners.append(lightest)
            load[lightest] += 1
    _even_out(placed, load)
    _spread_primaries(placed, list(load))
    return [tuple(owners) for owners in placed]


def _block(number: int, segments: int, members: list[str], copies: int) -> list[str]:
    """Owners in an empty cluster: neighbours have the same primary, so that clients learn few ranges of slots."""
    if not members:
        return []
    first = number * len(members) // segments
    others = members[first + 1 :] + members[:first]
    turn = number % len(others) if others else 0
    return [members[first], *(others[turn:] + others[:turn])][:copies]


def _even_out(placed: list[list[str]], load: dict[str, int]) -> None:
    """Moves ownerships from the fullest to the emptiest member, backups before primaries."""
    while load:
        light, heavy = min(load, key=lambda m: load[m]), max(load, key=lambda m: load[m])
        surplus = (load[heavy] - load[light]) // 2
        if surplus == 0:
            return
        movable = [owners for owners in placed if heavy in owners and light not in owners]
        movable.sort(key=lambda owners: owners[0] == heavy)
        for owners in movable[:surplus]:
            owners[owners.index(heavy)] = light
            load[heavy] -= 1
            load[light] += 1
        if not movable:
            return


def _spread_primaries(placed: list[list[str]], members: list[str]) -> None:
    """Changes the order of owners so that each member is preferred primary about equally often."""
    leads = dict.fromkeys(members, 0)
    for owners in placed:
        if owners:
            leads[owners[0]] += 1
    improved = True
    while improved:
        improved = False
        for owners in placed:
            lightest = min(owners, key=lambda member: leads[member], default=None)
            if lightest is not None and leads[owners[0]] - leads[lightest] > 1:
                leads[owners[0]] -= 1
                leads[lightest] += 1
                at = owners.index(lightest)
                owners[0], owners[at] = owners[at], owners[0]
                improved = True
