"""The embedded broker as a process: it serves, keeps its data, can be paused and killed, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from deelog_connector.devkafka.broker import EmbeddedKafka
from deelog_connector.devkafka.errors import AlreadyRunning, BrokerFailed, PortTaken, SetupError
from deelog_connector.devkafka.ports import free_port
from deelog_connector.devkafka.running import STOP_SECONDS, running, stop_running
from tests.support.java import hide_java
from tests.support.kafka import is_silent
from tests.support.topics import messages
from tests.support.waiting import waiting

Settings = dict[str, str | int | float | bool]

pytestmark = pytest.mark.kafka

_CLI = [sys.executable, "-c", "from deelog_connector.cli import main; main(prog_name='deelog')", "kafka"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker on the wheel's Java. The other tests of this file use the machine's."""
    folder = tmp_path_factory.mktemp("embedded")
    with pytest.MonkeyPatch.context() as patch:
        hide_java(folder / "path", patch)
        embedded = EmbeddedKafka(folder / "data")
        embedded.start()
    yield embedded
    embedded.stop()


def client(broker: EmbeddedKafka, settings: Settings | None = None) -> Settings:
    return {"bootstrap.servers": broker.bootstrap, "log_level": 0, **(settings or {})}


def create_topic(broker: EmbeddedKafka, name: str) -> None:
    admin = AdminClient(client(broker))
    admin.create_topics([NewTopic(name, 2)])[name].result(20)


def commit(broker: EmbeddedKafka, topic: str, value: bytes) -> None:
    producer = Producer(client(broker, {"transactional.id": topic, "transaction.timeout.ms": 20_000}))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value, partition=0)
    producer.commit_transaction(30)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_transactions_survive_stop_and_kill(broker: EmbeddedKafka, prefix: str) -> None:
    def values() -> list[bytes]:
        return [message.value() for message in messages(broker.bootstrap, prefix)]

    create_topic(broker, prefix)
    commit(broker, prefix, b"kept")
    # A commit is answered before its marker is in the log; a broker that stops in between may lose the marker.
    assert waiting(values, 60, "what was committed") == [b"kept"]
    address = broker.bootstrap
    broker.stop()
    assert broker.pid is None
    assert running(broker.data_dir) is None
    broker.start()
    broker.kill()
    broker.start()
    assert broker.bootstrap == address
    assert waiting(values, 60, "what was kept") == [b"kept"]


def test_topics_are_not_made_by_accident(broker: EmbeddedKafka, prefix: str) -> None:
    # Writing to a topic creates it if brokers allow that.
    errors: list[KafkaError | None] = []
    producer = Producer(client(broker, {"topic.metadata.propagation.max.ms": 500}))
    producer.produce(prefix, b"lost", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    assert [error and error.code() for error in errors] == [KafkaError.UNKNOWN_TOPIC_OR_PART]
    assert prefix not in AdminClient(client(broker)).list_topics(timeout=10).topics


def test_it_listens_on_this_machine_alone(broker: EmbeddedKafka) -> None:
    port = f":{int(broker.bootstrap.split(':')[1]):04X}"
    text = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    rows = [line.split() for line in text.splitlines()]
    listening = [row[1].removesuffix(port) for row in rows if row[1].endswith(port) and row[3] == "0A"]
    assert listening
    assert all(address.endswith("0100007F") for address in listening)


def test_members_may_have_short_sessions(broker: EmbeddedKafka, prefix: str) -> None:
    create_topic(broker, prefix)
    settings: Settings = {"group.id": prefix, "session.timeout.ms": 600, "heartbeat.interval.ms": 200}
    consumer = Consumer(client(broker, settings))
    consumer.subscribe([prefix])
    try:
        waiting(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2, 60, "an assignment")
    finally:
        consumer.close()


def test_paused_it_is_silent_and_resumed_it_answers(broker: EmbeddedKafka) -> None:
    host, port = broker.bootstrap.split(":")
    broker.pause()
    try:
        # The kernel still accepts connections, as for a hung process, but nothing answers.
        socket.create_connection((host, int(port)), timeout=5).close()
        waiting(lambda: is_silent(AdminClient(client(broker)), 1), 60, "the broker to fall silent")
    finally:
        broker.resume()
    assert AdminClient(client(broker)).list_topics(timeout=20).brokers


def test_a_paused_broker_can_be_stopped(broker: EmbeddedKafka) -> None:
    pid = broker.pid
    assert pid is not None
    broker.pause()
    begin = time.monotonic()
    broker.stop()
    assert time.monotonic() - begin < STOP_SECONDS, "it was killed, not stopped"
    assert not lives(pid)
    with pytest.raises(RuntimeError, match="start\\(\\) it first"):
        broker.pause()
    broker.start()


def test_one_broker_per_data_directory(broker: EmbeddedKafka) -> None:
    with pytest.raises(AlreadyRunning, match=f"runs at {broker.bootstrap} on"):
        EmbeddedKafka(broker.data_dir).start()
    with pytest.raises(AlreadyRunning, match="stop\\(\\) it first"):
        broker.start()
    found = running(broker.data_dir)
    assert found is not None
    assert (found.pid, found.bootstrap) == (broker.pid, broker.bootstrap)


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"port {port} .* is taken: stop .* or choose another port"):
            EmbeddedKafka(tmp_path, port).start()
    assert running(tmp_path) is None


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "data"
    assert running(folder) is None
    with pytest.raises(SetupError, match=rf"^{folder} cannot be made: Not a directory; name another folder"):
        EmbeddedKafka(folder).start()


def test_a_broker_that_does_not_come_up_shows_its_log(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path, overrides={"log.retention.ms": "0", "num.network.threads": "0"})
    with pytest.raises(BrokerFailed, match=r"(?s)num\.network\.threads"):
        broker.start()
    assert broker.pid is None
    assert running(tmp_path) is None


def test_a_broker_that_comes_up_too_slowly_is_ended(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path)
    with pytest.raises(BrokerFailed, match=r"did not open its port within 0 s; its log .*broker\.log ends"):
        broker.start(timeout=0.1)
    assert broker.pid is None
    assert running(tmp_path) is None


@pytest.mark.parametrize("paused", [False, True])
def test_it_dies_with_a_killed_parent(tmp_path: Path, paused: bool) -> None:
    code = (
        "import sys, signal; from pathlib import Path\n"
        "from deelog_connector.devkafka.broker import EmbeddedKafka\n"
        "broker = EmbeddedKafka(Path(sys.argv[1])); broker.start()\n"
        "sys.argv[2] == 'True' and broker.pause()\n"
        "print(broker.pid, flush=True); signal.pause()"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(paused)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert lives(pid)
        parent.kill()
    waiting(lambda: not lives(pid) and running(tmp_path) is None, 60, "the broker's end")


def test_command_line_start_status_stop(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        where = ["--data-dir", str(tmp_path)]
        return subprocess.run([*_CLI, *arguments, *where], capture_output=True, text=True, timeout=90, check=False)

    assert run("status").returncode == 3
    port = str(free_port())
    started = run("start", "--port", port)
    try:
        assert (started.returncode, started.stdout) == (0, f"127.0.0.1:{port}\n"), started.stderr
        asked = run("status")
        assert (asked.returncode, asked.stdout) == (0, started.stdout)
        again = run("start")
        assert again.returncode == 2
        assert again.stderr.startswith("Error: a broker runs at ")
        assert f"`deelog kafka stop --data-dir {tmp_path}`" in again.stderr
        assert len(again.stderr.splitlines()) == 1
        found = running(tmp_path)
        assert found is not None
    finally:
        stopped = run("stop")
    assert (stopped.returncode, stopped.stdout) == (0, f"stopped the broker of {tmp_path}\n")
    waiting(lambda: not lives(found.pid), 60, "the broker's end")
    assert run("status").returncode == 3
    assert run("stop").stdout == f"no broker runs on {tmp_path}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_line_foreground_stops_cleanly(tmp_path: Path, number: int) -> None:
    """Also if SIGINT is ignored at the start, as in processes that a shell starts with `&`."""
    command = [*_CLI, "start", "--foreground", "--port", "0", "--data-dir", str(tmp_path)]
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("127.0.0.1:")
        process.send_signal(number)
        assert process.wait(30) == 0
    assert running(tmp_path) is None


def test_foreground_notices_a_broker_that_dies(tmp_path: Path) -> None:
    command = [*_CLI, "start", "--foreground", "--port", "0", "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        found = running(tmp_path)
        assert found is not None
        os.kill(found.pid, signal.SIGKILL)
        assert process.wait(30) == 1
        assert "Kafka ended with exit code -9" in process.stderr.read()


def test_everything_it_writes_is_in_its_folder(broker: EmbeddedKafka, prefix: str) -> None:
    create_topic(broker, prefix)
    settings: Settings = {"compression.type": "lz4", "linger.ms": 50}
    producer = Producer(client(broker, settings))
    for _ in range(100):
        producer.produce(prefix, bytes(1000))
    assert producer.flush(20) == 0
    open_files = [str(entry.readlink()) for entry in Path(f"/proc/{broker.pid}/fd").iterdir()]
    maps = Path(f"/proc/{broker.pid}/maps").read_text()
    mapped = [line.split(maxsplit=5)[5] for line in maps.splitlines() if "/" in line]
    ours = ("/tmp/", "/var/tmp/", str(Path.home()))
    written = [name for name in {*open_files, *mapped} if name.strip().startswith(ours) and not name.endswith(".jar")]
    own = (f"{broker.data_dir}/", f"{sys.prefix}/")  # the second is the wheel's Java
    assert [name for name in written if not name.strip().startswith(own)] == []


def test_a_stale_file_is_no_broker(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text(f'{{"pid": {os.getpid()}, "bootstrap": "127.0.0.1:1"}}')
    assert running(tmp_path) is None
    assert stop_running(tmp_path) is False
