"""Stock consumers, each as its recipe on docs/consumers.md has it: what does it end with?

Every one runs as a process of its own, as its users run it, and is told by nothing but the recipe what a record means.
`changes` replaces pieces of the recipe (`{"read_committed": "read_uncommitted"}`). The answer maps keys to values.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from deelog_connector.devkafka.jars import fetch
from deelog_proof.harness.child import Child, until
from deelog_schemas.java import find_java
from tests.support.java import QUICK
from tests.system.consumers.environments import python_of
from tests.system.consumers.page import BOOTSTRAP, TOPIC, recipe, replaced

_HERE = Path(__file__).parent
_SECONDS = 180.0


class Place(NamedTuple):
    """Where a consumer reads, and a folder of its own for what it writes."""

    bootstrap: str
    topic: str
    folder: Path

    def recipe(self, heading: str, language: str, changes: dict[str, str]) -> str:
        """The page's recipe for this place."""
        text = replaced(recipe(heading, language), {TOPIC: self.topic} | changes)
        return text.replace(BOOTSTRAP, self.bootstrap)  # a sink of Connect's has none: its worker knows


class ConsumerFailed(Exception):
    """It ended with an error; the message is what it said."""


Changes = dict[str, str]
Held = dict[str, Any]


def plain(place: Place, changes: Changes) -> Held:
    """confluent-kafka."""
    found: Held = json.loads(_said(place, [sys.executable, "-c", place.recipe("confluent-kafka", "python", changes)]))
    return found


def kcat(place: Place, changes: Changes) -> Held:
    """kcat, whose lines are folded by the rule for readers of one's own."""
    if shutil.which("kcat") is None:
        raise ConsumerFailed("kcat is not installed: apt-get install kcat (make test-consumers does where it may)")
    said = _said(place, ["bash", "-c", place.recipe("kcat", "sh", changes)])
    held: Held = {}
    for line in _lines(said):  # in order within a partition, and a key has one
        key, value = line.split("\t")
        after = _payload(value)["after"] if value else None
        _put(held, _payload(key)["key"], after and after["value"], after is None)
    return held


def connect(place: Place, changes: Changes) -> Held:
    """JsonConverter and ExtractNewRecordState, as a worker of Connect runs them in front of a sink that upserts."""
    held: Held = {}
    for record in unwrapped(place, changes):
        value = record["value"]
        gone = value is None or value.get("__deleted") == "true"
        _put(held, record["key"]["key"], None if gone else value["value"], gone)
    return held


def unwrapped(place: Place, changes: Changes) -> list[dict[str, Any]]:
    """What reaches the sink: key, value and the name of the value's schema."""
    file = place.folder / "sink.properties"
    file.write_text(place.recipe("Kafka Connect's sinks", "properties", changes), "utf-8")
    said = _java(place, "Unwrap.java", (*fetch("debezium"), *fetch("kafka")), str(file), place.bootstrap)
    return [json.loads(line) for line in _lines(said)]


def flink(place: Place, changes: Changes) -> Held:
    """Flink SQL: the changelog of the recipe's query, retractions and all, read up to the topic's end."""
    bounded = {"'scan.startup.mode'": "'scan.bounded.mode' = 'latest-offset',\n  'scan.startup.mode'"}
    file = place.folder / "query.sql"
    file.write_text(place.recipe("Flink SQL", "sql", bounded | changes), "utf-8")
    held: Held = {}
    for kind, key, value in map(json.loads, _lines(_java(place, "Sql.java", fetch("flink"), str(file)))):
        _put(held, key, value, kind in ("-D", "-U"))
    return held


def pathway(place: Place, changes: Changes, ends: frozenset[str]) -> Held:
    """Pathway, which goes on for ever: until it has told all of `ends`."""
    return pathway_until(place, changes, lambda held, _: ends <= held.keys())


def pathway_until(place: Place, changes: Changes, done: Callable[[Held, str], bool]) -> Held:
    """Pathway, until what it holds and what it logged are what is waited for."""
    group = {'"group.id": "pathway"': f'"group.id": "{uuid.uuid4()}"'}  # one that was killed still has its partitions
    program = place.recipe("Pathway", "python", group | changes)
    child = Child("pathway", [str(python_of("pathway")), "-c", program], place.folder / "pathway.log")
    out = place.folder / "sessions.jsonl"

    def held() -> Held:
        text = out.read_text("utf-8") if out.exists() else ""
        changed = [json.loads(line) for line in text.split("\n")[:-1]]  # what is behind the last end is not whole yet
        found: Held = {}
        for row in sorted(changed, key=lambda row: (row["time"], row["diff"])):  # in one moment the old row goes first
            _put(found, row["key"], row["value"], row["diff"] < 0)
        return found

    def is_done() -> bool:
        child.must_run()
        return done(held(), child.log.read_text("utf-8"))

    child.start()
    try:
        until(is_done, _SECONDS, f"the end of {place.topic}, see {place.folder}", every=0.2)
    finally:
        child.kill()
    return held()


def spark(place: Place, changes: Changes) -> Held:
    """Spark's from_json."""
    jars = ",".join(map(str, fetch("spark-kafka")))
    options = f'--master local[2] --jars {jars} --driver-java-options "{QUICK}"'
    conf = "--conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=1"
    environment = {"PYSPARK_SUBMIT_ARGS": f"{options} {conf} pyspark-shell", "SPARK_LOCAL_IP": "127.0.0.1"}
    _said(place, [sys.executable, "-c", place.recipe("Spark", "python", changes)], environment)
    parts = [part.read_text("utf-8") for part in (place.folder / "sessions").glob("*.json")]
    rows = [json.loads(line) for part in parts if part for line in _lines(part)]
    return {row["key"]: row["value"] for row in rows}


def consumers(ends: frozenset[str]) -> dict[str, Callable[[Place, Changes], Held]]:
    """All of them by name."""
    bounded = partial(pathway, ends=ends)
    return {"plain": plain, "kcat": kcat, "connect": connect, "flink": flink, "pathway": bounded, "spark": spark}


def _put(held: Held, key: str, value: Any, gone: bool) -> None:
    if gone:
        held.pop(key, None)
    else:
        held[key] = value


def _lines(text: str) -> list[str]:
    """Not by `splitlines`, for which U+2028 in a value ends a line, too."""
    return text.removesuffix("\n").split("\n")


def _payload(text: str) -> dict[str, Any]:
    found = json.loads(text)
    payload: dict[str, Any] = found.get("payload", found)
    return payload


def _java(place: Place, source: str, jars: Iterable[Path], *arguments: str) -> str:
    options = ["-Xmx1g", QUICK, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.util")]
    classpath = os.pathsep.join(map(str, jars))
    java = find_java()
    if not java.resolve().with_name("javac").exists():
        raise ConsumerFailed(f"{java} cannot run {source}: install a whole JDK (17 or newer), compiler included")
    return _said(place, [str(java), *options, *opened, "-cp", classpath, str(_HERE / source), *arguments])


def _said(place: Place, command: list[str], environment: dict[str, str] | None = None) -> str:
    """Its standard output; `ConsumerFailed` where it ends with an error."""
    log = place.folder / "stderr"
    with log.open("w") as stderr:
        found = subprocess.run(
            command,
            cwd=place.folder,
            env=os.environ | (environment or {}),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            encoding="utf-8",
            timeout=_SECONDS,
            check=False,
        )
    if found.returncode != 0:
        raise ConsumerFailed(log.read_text("utf-8")[-20_000:])
    return found.stdout
