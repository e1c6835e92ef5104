"""`deelog kafka`: a real Apache Kafka for development, without Docker.

What starts the broker is imported by the commands, not by the module, so that the command line loads without it.
"""

from __future__ import annotations

import signal
from pathlib import Path

import click

from deelog_connector.devkafka.errors import BrokerFailed

NOT_RUNNING = 3  # as systemd and init scripts say it


def _data_dir(named: Path | None) -> Path:
    from deelog_schemas.java import cache_dir

    return named.absolute() if named else cache_dir() / "kafka"


_JARS = ("spark-kafka", "spark-delta", "spark-tables", "jdbc", "debezium", "flink", "apicurio", "kafka")
_DATA_DIR = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the broker's data and log.  [default: `kafka` in deelog's cache folder]",
)


@click.group()
def kafka() -> None:
    """A real Apache Kafka (one node, transactions on) for development.

    Needs Java 17 or newer, or the extra `java`. Its jars (45 MB) are fetched once, verified and kept in
    DEELOG_CACHE_DIR, by default ~/.cache/deelog; DEELOG_MAVEN_REPOSITORY names a mirror to fetch them from.
    """


@kafka.command(epilog="Example:  deelog kafka start --port 9092 --data-dir ./kafka-data")
@click.option("--port", default=9092, show_default=True, type=click.IntRange(0, 65535), help="0: any free one.")
@_DATA_DIR
@click.option("--heap", default="512m", show_default=True, help="The JVM's -Xmx.")
@click.option("--foreground", is_flag=True, help="Stay until Ctrl-C or SIGTERM and stop the broker then.")
def start(port: int, data_dir: Path | None, heap: str, foreground: bool) -> None:
    """Start the broker and print its address once it serves.

    Topics and data of the folder are kept between starts.
    """
    from deelog_connector.devkafka.broker import EmbeddedKafka

    broker = EmbeddedKafka(_data_dir(data_dir), port, heap, detached=not foreground)
    if not foreground:
        broker.start()
        named = f" --data-dir {data_dir}" if data_dir else ""
        _announce(broker.bootstrap, f"process {broker.pid}, log {broker.log}; end it with `deelog kafka stop{named}`")
        return
    for number in (signal.SIGTERM, signal.SIGINT):  # what a shell starts with & ignores SIGINT otherwise
        signal.signal(number, signal.default_int_handler)
    try:
        with broker:
            _announce(broker.bootstrap, f"process {broker.pid}, log {broker.log}; end it with Ctrl-C")
            code = broker.wait()
    except KeyboardInterrupt:
        return
    if code not in (0, 128 + signal.SIGTERM):  # `deelog kafka stop` from elsewhere is a clean end
        raise BrokerFailed(f"Kafka ended with exit code {code}: look at {broker.log}")


@kafka.command(epilog="Example:  deelog kafka stop")
@_DATA_DIR
def stop(data_dir: Path | None) -> None:
    """Stop the broker of the folder; no error where none runs."""
    from deelog_connector.devkafka.running import stop_running

    folder = _data_dir(data_dir)
    click.echo(f"stopped the broker of {folder}" if stop_running(folder) else f"no broker runs on {folder}")


@kafka.command(epilog="Example:  deelog kafka status || deelog kafka start")
@_DATA_DIR
def status(data_dir: Path | None) -> None:
    """Print the broker's address; exit code 0 where it runs, 3 where it does not."""
    from deelog_connector.devkafka.running import running

    folder = _data_dir(data_dir)
    broker = running(folder)
    if broker is None:
        click.echo(f"no broker runs on {folder}", err=True)
        click.get_current_context().exit(NOT_RUNNING)
    else:
        _announce(broker.bootstrap, f"process {broker.pid}, data in {folder}")


@kafka.command(epilog='Example:  spark-submit --jars "$(deelog kafka jars)" job.py')
@click.argument("name", type=click.Choice(_JARS), default=_JARS[0], metavar="[SET]")
def jars(name: str) -> None:
    """Fetch a set of jars and print their paths, separated by commas.

    spark-kafka (the default) is Spark's source and sink for Kafka, spark-delta its Delta tables, spark-tables those
    in memory that AUTO CDC writes to; jdbc are the drivers of PostgreSQL and SQLite for the diff job's jdbc sink;
    debezium (transforms and converters, without the client) and flink (SQL, with its Kafka connector) are what
    `make test-consumers` reads topics with; apicurio is the archive of a schema registry; kafka is the broker.
    """
    from deelog_connector.devkafka.jars import fetch

    click.echo(",".join(map(str, fetch(name))))


def _announce(bootstrap: str, details: str) -> None:
    """The address alone on stdout, for scripts; what people want to know on stderr."""
    click.echo(bootstrap)
    click.echo(details, err=True)
