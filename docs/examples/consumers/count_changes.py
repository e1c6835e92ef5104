"""Count a cache's changes per minute and operation, in a table of SQLite.

    spark-submit --packages … count_changes.py diff.properties counts.sqlite checkpoint

A streaming aggregate over event time. The counts that a batch has raised come as a whole, so that writing them again
changes nothing. Minutes are forgotten an hour after the newest one: a change that comes later does not count.
"""

import sqlite3
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from deelog_spark import changes

file, table, checkpoint = sys.argv[1:]


def upsert(counts: DataFrame, number: int) -> None:
    rows = [(row.minute, row.op, row.changes) for row in counts.collect()]
    connection = sqlite3.connect(table)
    with connection:
        connection.execute("CREATE TABLE IF NOT EXISTS counts (minute, op, changes, PRIMARY KEY (minute, op))")
        connection.executemany("INSERT OR REPLACE INTO counts VALUES (?, ?, ?)", rows)
    connection.close()


settings = {"spark.log.level": "WARN", "spark.sql.shuffle.partitions": 8}  # not 200: a batch of a cache is small
spark = SparkSession.builder.appName("count changes").config(map=settings).getOrCreate()
counts = (
    changes(spark, file)
    .withWatermark("ts", "1 hour")
    .groupBy(F.window("ts", "1 minute"), "op")
    .agg(F.count("*").alias("changes"))
    .select(F.date_format("window.start", "yyyy-MM-dd HH:mm").alias("minute"), "op", "changes")
)
query = (
    counts.writeStream.outputMode("update")
    .foreachBatch(upsert)
    .option("checkpointLocation", Path(checkpoint).absolute().as_uri())
    .trigger(availableNow=True)  # to today's end; without this line it goes on
    .start()
)
query.awaitTermination()
