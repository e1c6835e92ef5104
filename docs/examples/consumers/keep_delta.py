"""Keep a Delta table equal to a cache by MERGE: its live keys and their values, a row each.

    spark-submit --packages …,io.delta:delta-spark_4.2_2.13:4.4.0 \\
        --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension \\
        --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog \\
        keep_delta.py diff.properties table checkpoint

MERGE takes one row per key. A batch that is tried again finds what it has written, and changes nothing.
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from deelog_spark import changes, collapse

file, table, checkpoint = sys.argv[1], Path(sys.argv[2]).absolute(), Path(sys.argv[3]).absolute()
name = f"delta.`{table}`"


def merge(batch: DataFrame, number: int) -> None:
    collapse(batch).select("op", "key", "after.value", "after.expires_at").createOrReplaceTempView("last")
    batch.sparkSession.sql(f"""
        MERGE INTO {name} AS held USING last ON held.key = last.key
        WHEN MATCHED AND last.op = 'd' THEN DELETE
        WHEN MATCHED THEN UPDATE SET value = last.value, expires_at = last.expires_at
        WHEN NOT MATCHED AND last.op <> 'd' THEN INSERT (key, value, expires_at)
            VALUES (last.key, last.value, last.expires_at)
    """)


settings = {"spark.log.level": "WARN", "spark.sql.shuffle.partitions": 8}  # not 200: a batch of a cache is small
spark = SparkSession.builder.appName("keep delta").config(map=settings).getOrCreate()
spark.sql(f"CREATE TABLE IF NOT EXISTS {name} (key STRING, value STRING, expires_at BIGINT) USING delta")
query = (
    changes(spark, file)
    .writeStream.foreachBatch(merge)
    .option("checkpointLocation", checkpoint.as_uri())
    .trigger(availableNow=True)  # to today's end; without this line it goes on
    .start()
)
query.awaitTermination()
