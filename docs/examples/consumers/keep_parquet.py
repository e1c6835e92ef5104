"""Keep a parquet table equal to a cache: its live keys and their values, a row each.

    spark-submit --packages … keep_parquet.py diff.properties table checkpoint

`table/current` is a link to the newest version, replaced in one step: readers see one version or the next. Every batch
writes the whole table again, which is right for tables of some gigabytes; for larger ones see keep_delta.py.
"""

import shutil
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from deelog_spark import changes, collapse

file, table, checkpoint = sys.argv[1], Path(sys.argv[2]).absolute(), Path(sys.argv[3]).absolute()
current = table / "current"


def merge(batch: DataFrame, number: int) -> None:
    place = table / f"{number:09d}"
    before = current.resolve()
    if before == place:
        return  # the batch was done, and is tried again
    batch = batch.persist()  # else both uses below would read Kafka
    last = collapse(batch).select("op", "key", "after.value", "after.expires_at")
    rows = last.where("op <> 'd'").drop("op")
    if current.exists():
        rows = rows.unionByName(batch.sparkSession.read.parquet(before.as_uri()).join(last, "key", "left_anti"))
    rows.write.mode("overwrite").parquet(place.as_uri())
    batch.unpersist()
    link = table / "next"
    link.unlink(missing_ok=True)
    link.symlink_to(place.name)
    link.rename(current)
    for old in table.glob("[0-9]*"):
        if old not in (before, place):  # somebody may still read the version before
            shutil.rmtree(old)


settings = {"spark.log.level": "WARN", "spark.sql.shuffle.partitions": 8}  # not 200: a batch of a cache is small
spark = SparkSession.builder.appName("keep parquet").config(map=settings).getOrCreate()
query = (
    changes(spark, file)
    .writeStream.foreachBatch(merge)
    .option("checkpointLocation", checkpoint.as_uri())
    .trigger(availableNow=True)  # to today's end; without this line it goes on
    .start()
)
query.awaitTermination()
