"""A program with a cache of its own, captured.

python docs/examples/shop.py
"""

import threading

import cachetools

import deelog_interceptors.cachetools as deelog

sessions, lock = cachetools.TTLCache(maxsize=10_000, ttl=600), threading.RLock()
sessions["session:0"] = "anna"

with deelog.capture(sessions, "docs/examples/sessions.properties", lock=lock) as capture:
    capture.wait_until_streaming()  # so that what follows comes as changes: a program need not wait
    with lock:
        sessions["session:1"] = "ben"
        sessions["session:1"] = "ben, with a cart"
        del sessions["session:1"]
