"""A server that all workers of a run share: one Kafka for all workers costs the CPU of one.

The process that started the workers starts it when a worker first asks for it, and stops it at the end of the run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Final

from deelog_connector.devkafka.errors import SetupError
from deelog_schemas.java import JavaError

_VARIABLE: Final = "DEELOG_TESTS_SHARED"
"""Holds the socket's path, for workers."""
_SECONDS: Final = 300.0


def shared_address() -> str:
    """The address of the shared server. RuntimeError if it did not start."""
    with Client(os.environ[_VARIABLE]) as connection:
        connection.send("address")
        if not connection.poll(_SECONDS):
            raise RuntimeError(f"the shared server did not start within {_SECONDS:.0f} s")
        found = connection.recv()
    if isinstance(found, Exception):
        raise found
    return str(found)


@contextmanager
def sharing(socket: Path, server: Callable[[], AbstractContextManager[str]]) -> Iterator[None]:
    """Answers `shared_address` of this process and its children, at `socket`. `server` gives its address."""
    listener = Listener(str(socket), "AF_UNIX")
    # An embedded broker dies with the thread that started it.
    thread = threading.Thread(target=_serve, args=(listener, server), name="shared server")
    thread.start()
    os.environ[_VARIABLE] = str(socket)
    try:
        yield
    finally:
        with suppress(OSError), Client(os.environ.pop(_VARIABLE)) as connection:
            connection.send("end")
        thread.join()


def _serve(listener: Listener, server: Callable[[], AbstractContextManager[str]]) -> None:
    found: str | Exception | None = None
    with listener, ExitStack() as running:
        while True:
            with suppress(OSError, EOFError), listener.accept() as connection:  # of a worker that has gone meanwhile
                if connection.recv() == "end":
                    return
                if found is None:
                    try:
                        found = running.enter_context(server())
                    except (SetupError, JavaError) as error:  # told to each who asks
                        found = RuntimeError(f"the shared server did not start: {error}")
                connection.send(found)
