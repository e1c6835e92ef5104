"""Invalidate a second cache: delete from it every key that has changed in the first.

    spark-submit --packages … invalidate.py diff.properties redis://localhost:6379 checkpoint

Needs the package redis on the driver. Deleting again does no harm, so a batch that is tried again is right. A key that
the second cache reads again between the change and the delete is read once more: never is it older than the diff topic.
"""

import sys
from itertools import islice
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from redis import Redis

from deelog_spark import changes

file, url, checkpoint = sys.argv[1:]


def delete(batch: DataFrame, number: int) -> None:
    with Redis.from_url(url) as second:
        keys = (row.key for row in batch.select("key").distinct().toLocalIterator())
        while some := list(islice(keys, 1000)):
            with second.pipeline(transaction=False) as pipeline:
                for key in some:
                    pipeline.delete(key)
                pipeline.execute()


spark = SparkSession.builder.appName("invalidate").config("spark.log.level", "WARN").getOrCreate()
query = (
    # An invalidation needs no past: what the second cache holds when the job starts first is for you to clear.
    changes(spark, file, startingOffsets="latest")
    .writeStream.foreachBatch(delete)
    .option("checkpointLocation", Path(checkpoint).absolute().as_uri())
    .trigger(availableNow=True)  # to today's end; without this line it goes on
    .start()
)
query.awaitTermination()
