"""Free ports, and waiting for servers with a deadline."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import time
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

HOST = "127.0.0.1"
_POLL_SECONDS = 0.05
# Linux takes ports of outgoing connections from 32768 on, macOS and Windows from 49152 on.
_BELOW_OUTGOING = range(15_000, 32_768)


def wait_until_it_serves(bootstrap: str, timeout: float, check: Callable[[], None] = lambda: None) -> None:
    """Return once a broker at `bootstrap` takes requests; TimeoutError after `timeout` seconds.

    That is when metadata names a broker: the port opens a moment before topics can be created. `check` is called at
    every turn and may raise to end the wait.
    """
    deadline = time.monotonic() + timeout
    host, port = bootstrap.rsplit(":", 1)

    def connects() -> bool:
        check()
        return _connects(host, int(port))

    # The client comes second: it would log every refused connection.
    if not until(connects, deadline):
        raise TimeoutError(f"did not open its port within {timeout:.0f} s")
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    if not until(lambda: connects() and _names_a_broker(admin), deadline):
        raise TimeoutError(f"did not answer within {timeout:.0f} s")


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on, and that no other call returns for a minute."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """`count` ports as `free_port` returns them.

    None is of the range from which the system takes the ports of outgoing connections: a server that starts a moment
    later, or again after a kill, would now and then find its own port in use. Drawn at random, as portpicker draws
    them. Each was connected to and left in TIME_WAIT, which keeps out all but servers that bind with SO_REUSEADDR, as
    servers do: so no other process finds it free before the server has it (ephemeral-port-reserve's idea).
    """
    found: list[int] = []
    for port in random.sample(_BELOW_OUTGOING, len(_BELOW_OUTGOING)):
        with contextlib.suppress(OSError):
            _reserve(port)
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(errno.EADDRINUSE, f"fewer than {count} ports of {HOST} are free")


def _reserve(port: int) -> None:
    """Raises OSError if it is not free."""
    with socket.socket() as listener:
        listener.bind((HOST, port))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.listen()
        with socket.create_connection((HOST, port)):
            accepted, _ = listener.accept()
            accepted.close()  # first: who closes first waits


def can_bind(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        # As Java does: a former broker's connections in TIME_WAIT do not prevent it.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def _names_a_broker(admin: AdminClient) -> bool:
    try:
        return bool(admin.list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def until(condition: Callable[[], bool], deadline: float, every: float = _POLL_SECONDS) -> bool:
    """Polls until it is true; False once `time.monotonic()` has passed `deadline`."""
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
