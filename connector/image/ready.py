"""The node's health check: exit code 0 if it answers at the port of `cache.listen` and knows an owner of every slot.

A node is unhealthy too while the others cannot serve theirs; the check's retries bridge a takeover. Weighed in
docs/decisions.md, "A node in a container is healthy when its cluster is".
"""

from __future__ import annotations

import os
import socket
import sys

PORT = int(os.environ.get("CONNECT_CACHE_LISTEN", "127.0.0.1:6379").rpartition(":")[2])

with socket.create_connection(("127.0.0.1", PORT), timeout=2) as connection:
    connection.sendall(b"*2\r\n$7\r\nCLUSTER\r\n$4\r\nINFO\r\n")
    answer = connection.recv(4096)
sys.exit(None if b"cluster_state:ok\r\n" in answer else f"answered {answer!r}")
