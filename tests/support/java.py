"""The JVMs of a run: options that make them quick to start, and an environment without an installed Java."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyspark
import pytest

from deelog_connector.devkafka.jars import fetch
from deelog_schemas.java import JavaError, find_java

QUICK: Final = "-XX:TieredStopAtLevel=1"
"""For a JVM that runs for a minute: only the fast compiler. The optimizing one would take half of the CPU."""
_ROOM: Final = "-XX:ReservedCodeCacheSize=128m"
"""The fast compiler alone gets 48 MB, of which a Spark that runs tests for two minutes has used 44."""
_SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""A JVM whose class path or version is another one passes over the archive without a word."""
_TRAINING_SECONDS: Final = 300
_KAFKA: Final = """
import sys
from pathlib import Path
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deelog_connector.devkafka.broker import EmbeddedKafka

with EmbeddedKafka(Path(sys.argv[1])) as kafka:
    servers = {"bootstrap.servers": kafka.bootstrap}
    admin = AdminClient(servers)
    for made in admin.create_topics([NewTopic("t", 1)]).values():
        made.result(60)
    producer = Producer({**servers, "transactional.id": "t"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("t", b"1")
    producer.commit_transaction(60)
    consumer = Consumer({**servers, "group.id": "t", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    assert consumer.consume(1, 60)
    consumer.close()
"""
_SPARK: Final = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(100).selectExpr("id", "id % 7 as k", "cast(cast(id as string) as binary) as value")
rows.groupBy("k").count().write.parquet(f"{sys.argv[1]}/rows")
assert spark.read.parquet(f"{sys.argv[1]}/rows").count() == 7
assert rows.rdd.map(lambda row: row.id).sum() == 4950
stream = spark.readStream.format("rate").load().writeStream.foreachBatch(lambda batch, _: batch.collect())
stream.option("checkpointLocation", f"{sys.argv[1]}/checkpoint").trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def quick_jvms(temporary: Path) -> dict[str, str]:
    """The variables with which the JVMs that are started from here start quickly, and put their files in `temporary`.

    Kafka and Spark load their classes from archives (JEP 350), which halves the CPU of a start. The archives are in
    this Python environment, since paths of classes are part of them; making them takes half a minute, once for each
    Java. Without a Java there are none.
    """
    variables = {"JAVA_TOOL_OPTIONS": f"{QUICK} {_ROOM} -Djava.io.tmpdir={temporary}", "SPARK_SUBMIT_OPTS": ""}
    try:
        java = find_java()
    except JavaError:  # the tests that need one say so
        return _added(variables)
    kafka = _archive("kafka", java, (sys.executable, _KAFKA), "JAVA_TOOL_OPTIONS", fetch("kafka"))
    # Its JVM is the program, Python its child: so the archive is there when the program has ended.
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    spark = _archive("spark", java, (str(submit), _SPARK), "SPARK_SUBMIT_OPTS", [submit])
    variables["JAVA_TOOL_OPTIONS"] += f" -XX:SharedArchiveFile={kafka} {_SILENT}"
    variables["SPARK_SUBMIT_OPTS"] = f"-XX:SharedArchiveFile={spark}"
    return _added(variables)


def _added(variables: Mapping[str, str]) -> dict[str, str]:
    """Each after what the variable holds already."""
    return {name: f"{os.environ.get(name, '')} {value}".strip() for name, value in variables.items()}


def _archive(name: str, java: Path, program: tuple[str, str], variable: str, classpath: list[Path]) -> Path:
    """The archive of the classes that a JVM loads in `program`, an interpreter and a text; made where there is none."""
    parts = (str(java.resolve()), str(java.stat().st_mtime), *program, *map(str, classpath))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    archive = Path(sys.prefix) / "java" / f"{name}-{key}.jsa"
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        sys.stderr.write(f"Making {archive.name}, from which {name.title()} starts in half of the time.\n")
        made, text = Path(folder) / "made.jsa", Path(folder) / "program.py"
        text.write_text(program[1])
        environment = os.environ | _added({"JAVA_TOOL_OPTIONS": QUICK}) | {"JAVA_HOME": str(java.parent.parent)}
        environment[variable] = f"{environment.get(variable, '')} -XX:ArchiveClassesAtExit={made} {_SILENT}".strip()
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [program[0], str(text), str(Path(folder) / "data")]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TRAINING_SECONDS, check=False
        )
        if done.returncode or not made.exists():
            raise RuntimeError(f"no archive for {name}:\n{done.stdout}\n{done.stderr}")
        made.rename(archive)
    return archive


def hide_java(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Removes every `java` from PATH and JAVA_HOME; other programs stay. `folder` must not exist."""
    folder.mkdir()
    parts = []
    for number, part in enumerate(os.environ["PATH"].split(os.pathsep)):
        kept = Path(part)
        if (kept / "java").exists():
            kept = folder / str(number)
            kept.mkdir()
            for found in Path(part).iterdir():
                if found.name != "java":
                    (kept / found.name).symlink_to(found)
        parts.append(str(kept))
    patch.setenv("PATH", os.pathsep.join(parts))
    patch.delenv("JAVA_HOME", raising=False)
