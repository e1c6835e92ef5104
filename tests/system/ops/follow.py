"""Follows a page of the documentation to the letter: `python -m tests.system.ops.follow docs/tutorial.md`.

A fenced block of language `sh` is run by bash from the root of the project and must succeed; one of language `text`
right behind it is what it printed. With `terminal=NAME` a command runs on in a terminal of its own, and a text is what
that one printed next. Numbers that no two runs share (times, processes, epochs, digests) count as equal, and lines that
begin with `# ` may be there or not: how often owners change depends on the machine.

Weighed in docs/decisions.md, "Pages that tests follow".
"""

from __future__ import annotations

import fcntl
import os
import queue
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.paths import ROOT

SECONDS: Final = 240.0
"""For one command, or for one line that a terminal is to print."""

_REMARK: Final = "# "
_FENCE: Final = re.compile(r"^```(\w+)?(?: terminal=(\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARIES: Final = re.compile(r"(?<=\"digest\":\")\w+|\d{4,}(/\d+)?|(?<=\bn)\d(?=@)|(?<=epoch )\d+|(?<=\"epoch\":)\d+")


class Block(NamedTuple):
    language: str
    terminal: str
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for match in _FENCE.finditer(page):
        yield Block(match[1] or "", match[2] or "", match[3], page.count("\n", 0, match.start()) + 1)


def same(line: str) -> str:
    """A line without what varies."""
    return _VARIES.sub("#", line.rstrip())


class Terminal:
    """A command that runs on, and the lines that it prints."""

    def __init__(self, name: str, command: str, folder: Path) -> None:
        self._name, self._errors = name, folder / f"{name}.err"
        self._lines: queue.Queue[str] = queue.Queue()
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def prints(self, wanted: str) -> None:
        """Fails unless exactly these lines come next, but for remarks."""
        for line in wanted.splitlines():
            found = _REMARK
            while found.startswith(_REMARK):
                if line.startswith(_REMARK):
                    break
                try:
                    found = self._lines.get(timeout=SECONDS)
                except queue.Empty:
                    raise AssertionError(f"{self._name} did not print: {line}") from None
            else:
                assert same(found) == same(line), f"{self._name} printed\n  {found}\ninstead of\n  {line}"

    def errors(self) -> str:
        """What the command said beside its output."""
        return f"{self._name}:\n{self._errors.read_text()}"


def run(command: str) -> str:
    """What a block of commands prints; fails where one of them does."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command}ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def follow(path: Path) -> int:
    """Follows the page; how many blocks there were."""
    terminals: dict[str, Terminal] = {}
    printed, count = "", 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            for block in blocks(path.read_text("utf-8")):
                begin = time.monotonic()
                try:
                    if block.language == "sh" and block.terminal:
                        if block.terminal in terminals:  # the same one again: what it showed first has ended
                            terminals[block.terminal].process.wait(SECONDS)
                        terminals[block.terminal] = Terminal(block.terminal, block.text, Path(folder))
                    elif block.language == "sh":
                        printed = run(block.text)
                    elif block.language == "text" and block.terminal:
                        terminals[block.terminal].prints(block.text)
                    elif block.language == "text":
                        wanted = [same(line) for line in block.text.splitlines()]
                        assert [same(line) for line in printed.splitlines()] == wanted, f"printed was\n{printed}"
                    else:
                        continue
                except AssertionError as error:
                    told = "".join(terminal.errors() for terminal in terminals.values())
                    raise AssertionError(f"{path.name}:{block.line}: {error}\n{told}") from None
                count += 1
                print(f"{path.name}:{block.line} {time.monotonic() - begin:.1f} s", flush=True)  # noqa: T201
        finally:
            for terminal in terminals.values():
                with suppress(ProcessLookupError):
                    terminal.process.send_signal(signal.SIGKILL)
                terminal.process.wait()
    return count


def _loopback_up() -> None:
    """A new network namespace has a loopback interface that is down. Where it is up, or not ours, nothing happens."""
    with socket.socket() as any_socket, suppress(PermissionError):
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 0x49))  # SIOCSIFFLAGS: up, loopback, running


def main() -> None:
    _loopback_up()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (page,) = sys.argv[1:]
    print(f"{follow(ROOT / page)} blocks")  # noqa: T201


if __name__ == "__main__":
    main()
