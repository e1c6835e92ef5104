"""Print what a cache held when its diff topic ended at given offsets: a line of JSON per key.

    spark-submit --packages … as_of.py diff.properties '{"0": 1200, "1": 1187}'

The offsets are those of all the diff topic's partitions, say as a consumer group of yours has committed them. Offsets
from before the compaction lag are refused.
"""

import json
import sys

from pyspark.sql import SparkSession

from deelog_spark import latest

file, offsets = sys.argv[1:]
settings = {"spark.log.level": "WARN", "spark.sql.shuffle.partitions": 8}  # not 200: a batch of a cache is small
spark = SparkSession.builder.appName("as of").config(map=settings).getOrCreate()
held = latest(spark, file, as_of={int(partition): n for partition, n in json.loads(offsets).items()})
for row in held.orderBy("key").toLocalIterator():
    print(json.dumps({"key": row.key, "value": row.value, "expires_at": row.expires_at}))
