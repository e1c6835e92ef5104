"""The node's health check: exit code 0 if it answers PING at the port of `cache.listen` (CONNECT_CACHE_LISTEN)."""

from __future__ import annotations

import os
import socket
import sys

PORT = int(os.environ.get("CONNECT_CACHE_LISTEN", "127.0.0.1:6379").rpartition(":")[2])

with socket.create_connection(("127.0.0.1", PORT), timeout=2) as connection:
    connection.sendall(b"*1\r\n$4\r\nPING\r\n")
    answer = connection.recv(64)
sys.exit(None if answer == b"+PONG\r\n" else f"answered {answer!r}")
