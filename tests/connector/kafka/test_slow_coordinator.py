"""A group's coordinator that is found when the time of the request has just passed.

librdkafka 2.16 aborts the process then (its issue 4605): each test asks from a process of its own.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deelog_connector.devkafka.broker import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ASKING = """
import sys, threading
from deelog_connector.errors import KafkaUnavailable
from deelog_connector.kafka.admin import KafkaAdmin
from deelog_connector.kafka.client import coordinator_answers
from tests.connector.cache import config_of

what, bootstrap = sys.argv[1:]
config = config_of(bootstrap, "p")

def answers():
    coordinator_answers(config, "g")

def members():
    try:
        KafkaAdmin(config, 1.0).members("g")
    except KafkaUnavailable:
        pass

def always():
    while True:
        globals()[what]()

globals()[what]()
print("asks", flush=True)
for _ in range(30):
    threading.Thread(target=always, daemon=True).start()
sys.stdin.read()
"""


@pytest.mark.parametrize("what", ["answers", "members"])
def test_a_coordinator_that_answers_too_late_does_not_end_the_process(what: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    with EmbeddedKafka(tmp_path) as broker:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", ASKING, what, broker.bootstrap]
        with subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe) as asking:
            assert asking.stdout is not None
            assert asking.stdout.readline() == b"asks\n"
            for _ in range(12):
                broker.pause()
                time.sleep(random.uniform(0.9, 1.2))
                broker.resume()
                time.sleep(random.uniform(0.2, 0.5))
            died = asking.poll()
            asking.kill()
    assert died is None
