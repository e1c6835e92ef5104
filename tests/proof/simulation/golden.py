"""What a scenario tells when it runs, in a form that a person can check and that lives through changes of timing.

It says by segment who was elected and what was committed to the topic and by whom, between what was done to the
cluster; then what the clients got as answers, and what the topic holds in the end. Nodes have the names that the
scenario gives them, or `N1`, `N2`, … in the order in which they appear; epochs are counted from 1. Weighed in
docs/decisions.md, "What a scenario records".

    python -m tests.proof.simulation.golden NAME            prints what it tells now
    python -m tests.proof.simulation.golden --update [NAME] writes it into the file (of all scenarios)
    python -m tests.proof.simulation.golden --check [NAME]  prints what differs, and exits with 1 where anything does
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from deelog_connector.kafka_port import InRecord
from deelog_interceptors.grid.topology.view import View
from deelog_proof.simulation.caches import CACHES
from deelog_proof.simulation.checker import Checker
from deelog_proof.simulation.clients import PADDING
from deelog_proof.simulation.context import CHANGES
from deelog_proof.simulation.run import Verdict
from deelog_proof.simulation.script import GRID, Script, parse
from deelog_proof.simulation.world import World
from deelog_schemas.envelope import JsonCodec
from deelog_schemas.header import Kind, node_number
from deelog_schemas.records import Record, decode

SCENARIOS: Final = {
    path.stem: path
    for path in sorted(Path(__file__).with_name("scenarios").glob("*/*.txt"), key=lambda path: path.stem)
}
"""The files by name. `rules` shows what each CHECK is for, `faults` what each kind of fault does, `found` each bug."""
LINE: Final = "---"
_MEMBER: Final = re.compile(r"<(n\d+)@(\d+)>")
_EPOCH: Final = re.compile(r"\{(\d+)\}")
_CODEC: Final = JsonCodec(CHANGES, "grid", "p", "c")
_OF_KEYS: Final = ("put", "del", "get", "refuse", "allow")
_SEGMENT_AT: Final = {"clear": 0, "signal": 0, "snapshot": 0, "overflow": 1, "let": 2}


@dataclass
class Story:
    """Lines by segment. `<member>` and `{epoch}` stand for what gets its name at the end."""

    lines: dict[int, list[str]] = field(default_factory=dict)
    members: dict[str, list[str]] = field(default_factory=dict)
    """By node id, in the order in which they started."""
    epochs: dict[int, set[int]] = field(default_factory=dict)

    def tell(self, segment: int, line: str) -> None:
        """One line of a segment."""
        self.epochs.setdefault(segment, set()).update(map(int, _EPOCH.findall(line)))
        self.lines.setdefault(segment, []).append(line)

    def named(self, segment: int, names: dict[str, str]) -> list[str]:
        """The segment's lines with the names of nodes, and with epochs from 1.

        Nodes without a name get one here, in the order in which they appear.
        """
        order = {str(epoch): f"e{at}" for at, epoch in enumerate(sorted(self.epochs[segment] - {0}), 1)} | {"0": "e0"}

        def member(found: re.Match[str]) -> str:
            node_id = found[1]
            name = names.setdefault(node_id, f"N{1 + sum(name[0] == 'N' for name in names.values())}")
            return name + "'" * self.members[node_id].index(f"{node_id}@{found[2]}")

        lines = [_EPOCH.sub(lambda m: order[m[1]], _MEMBER.sub(member, line)).rstrip() for line in self.lines[segment]]
        return [
            " ".join(names.get(word, word) for word in line.split(" ")) if line.startswith(LINE) else line
            for line in lines
        ]


class Teller(Checker):
    """A checker that writes down what it sees."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.story = Story({s: [] for s in range(world.segments)}, epochs={s: set() for s in range(world.segments)})
        self._again = False
        self._rows: dict[int, int] = {}

    def say(self, line: str) -> None:
        """Of the trace, the story takes what was done to the cluster."""
        super().say(line)
        mark, _, done = line.partition(" ")
        words = done.split()
        if mark != LINE or words[0] in ("let", "at", "get"):
            return
        for segment in self.story.lines:
            if words[0] not in _OF_KEYS or words[1].startswith(f"s{segment}k"):
                self.story.tell(segment, f"{LINE} {done}")

    def view_made(self, view: View) -> None:
        """Elections. A segment without a primary is told by the next one: how long that lasts is a matter of timing."""
        super().view_made(view)
        for node in self.world.everybody:
            known = self.story.members.setdefault(node.node_id, [])
            if node.member not in known:
                known.append(node.member)
        for number, row in enumerate(view.rows):
            before = self._rows.get(number)
            self._rows[number] = row.epoch
            if row.primary is not None and (before is None or before != row.epoch):
                reset = f", to reset: {row.must_reset}" if row.must_reset else ""
                self.story.tell(number, f"<{row.primary}> is elected in {{{row.epoch}}}{reset}")

    def lose(self, partition: int, records: list[InRecord] | None) -> None:
        """What is read again afterwards was told already."""
        for raw in records or ():
            record = decode(*raw)
            self.story.tell(record.header.segment, f"lost: {self._told(record)}")
        self._again = True
        super().lose(partition, records)
        self._again = False

    def _record(self, raw: InRecord) -> None:
        if not self._again:
            record = decode(*raw)
            self.story.tell(record.header.segment, self._told(record))
        super()._record(raw)

    def _told(self, record: Record) -> str:
        header, control = record.header, record.control
        member = next(n.member for n in self.world.everybody if node_number(n.member) == header.node)
        at = f"@{{{header.epoch}}}.{header.sequence}"
        if header.kind is Kind.RESET_BEGIN:
            what = f"begins a reset: {control['reason']}"
        elif header.kind is Kind.RESET_END:
            what = f"ends it {at}, entries: {control['count']}"
        elif header.kind in (Kind.CLAIM, Kind.ACTIVE):
            what = {Kind.CLAIM: "claims", Kind.ACTIVE: "is active in"}[header.kind] + f" {{{control['epoch']}}}"
        elif header.kind is Kind.SKIPPED:
            what = f"skips {control['first']} to {at}"
        elif header.kind is Kind.RELEASE:
            what = f"releases {at}"
        else:
            what = f"{'row ' if header.kind is Kind.READ else ''}{_entry(record)} {at}"
        return f"<{member}> {what}"


def _entry(record: Record) -> str:
    name = _short(_CODEC.decode_key(record.key))
    if record.value is None:
        return f"{name} tombstone"
    envelope = _CODEC.decode_value(record.value)
    reason = envelope.source.get("reason")
    told = "" if reason in (None, "put", "remove") or record.header.kind is Kind.READ else f" ({reason})"
    return (f"{name} gone" if envelope.after is None else f"{name}={_value(envelope.after.value)}") + told


def _short(key: bytes) -> str:
    """The script's name of a key."""
    return key.decode().rpartition(".")[0]


def _value(value: bytes) -> str:
    """A value without what `set size` adds."""
    return value.rstrip(PADDING).decode()


def load(path: Path) -> tuple[Script, str]:
    """A scenario's script, and what it told when it was written down."""
    text = path.read_text(encoding="utf-8")
    return parse(text), text.partition(f"\n{LINE}\n")[2]


def _concerned(script: Script) -> set[int]:
    """The segments that a script names; others are there so that nodes differ in what they do."""
    found = set()
    for _, verb, arguments in script.events:
        if verb == "at":
            verb, arguments = arguments[2], arguments[3:]
        if verb in _OF_KEYS:
            found.add(int(arguments[0][1:].partition("k")[0]))
        elif verb in _SEGMENT_AT:
            found.add(int(arguments[_SEGMENT_AT[verb]]))
    return found


def run(script: Script) -> tuple[Verdict, str]:
    """How it ends, and what it tells."""
    world = World(script, Teller)
    verdict = world.run()
    checker: Any = world.checker
    names = {node_id: name for name, node_id in reversed(world.names.items())}
    out = []
    for segment in sorted(_concerned(script)):
        out += [f"segment {segment}", *(f"    {line}" for line in checker.story.named(segment, names))]
        entries = checker.seen[segment].reader.entries.values()
        held = " ".join(sorted(f"{_short(e.key)}={_value(e.value)}" for e in entries))
        out.append(f"    in the end: {held or 'nothing'}")
    out.append("clients")
    for write in checker.writes:
        what = f"{_short(write.key)}={_value(write.value)}" if write.value is not None else f"del {_short(write.key)}"
        out.append(f"    {what if write.key else f'clear {write.segment}'}: {write.status}")
    return verdict, "\n".join(out) + "\n"


def difference(path: Path) -> str:
    """Why a scenario does not run as it was written down; empty where it does."""
    script, then = load(path)
    if script.cache != GRID:  # it is told by what it expects
        return str(CACHES[script.cache].world(script).run().violation or "")
    verdict, now = run(script)
    if verdict.violation is not None:
        return str(verdict.violation)
    return "\n".join(difflib.unified_diff(then.splitlines(), now.splitlines(), "then", "now", lineterm=""))


def _update(path: Path) -> None:
    script, before = load(path)
    verdict, told = run(script)
    if verdict.violation is not None:
        click.echo(f"{path.stem}: {verdict.violation}; left as it is", err=True)
    elif told != before:
        head = path.read_text(encoding="utf-8").partition(f"\n{LINE}\n")[0].rstrip("\n")
        path.write_text(f"{head}\n{LINE}\n{told}", encoding="utf-8")
        click.echo(f"{path.stem}: written down anew")


def _main() -> None:
    reader = argparse.ArgumentParser(description="What scenarios tell.")
    what = reader.add_mutually_exclusive_group()
    what.add_argument("--update", action="store_true", help="write it into the files")
    what.add_argument("--check", action="store_true", help="exit with 1 where a file says something else")
    what.add_argument("--trace", action="store_true", help="print the whole trace as well")
    reader.add_argument("names", nargs="*")
    chosen = reader.parse_args()
    differ = False
    for path in SCENARIOS.values():
        if chosen.names and path.stem not in chosen.names:
            continue
        if chosen.update:
            _update(path)
        elif chosen.check:
            differs = difference(path)
            differ = differ or bool(differs)
            click.echo(f"{path.stem}: {differs or 'as it was written down'}")
        else:
            _show(path, chosen.trace)
    sys.exit(differ)


def _show(path: Path, trace: bool) -> None:
    script, _ = load(path)
    verdict, told = run(script)
    if trace:
        click.echo("\n".join(verdict.trace))
    expects = "".join(f"{e}   (it is {verdict.counts[e.name]})\n" for e in script.expects)
    click.echo(f"{path.stem}: {verdict.violation or 'nothing is wrong'}\n{told}{expects}")


if __name__ == "__main__":
    _main()
