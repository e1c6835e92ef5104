"""Keep a table equal to a cache by AUTO CDC of Spark Declarative Pipelines: its live keys and their values, a row each.

    spark-pipelines run --spec auto_cdc.yml --packages …

`auto_cdc.yml` names the diff job's configuration and the table, which must be of a catalog that takes part in Spark's
row-level MERGE. Offsets order the differences of a key, which stays on one partition; a run that is tried again finds
what it has written, and changes nothing.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from deelog_spark import changes

spark = SparkSession.active()
config = str(spark.conf.get("spark.deelog.config"))
table = str(spark.conf.get("spark.deelog.table"))


@dp.temporary_view
def differences() -> DataFrame:
    return changes(spark, config).select("op", "key", "after.value", "after.expires_at", "offset")


dp.create_streaming_table(table)
dp.create_auto_cdc_flow(
    target=table,
    source="differences",
    keys=["key"],
    sequence_by="offset",
    apply_as_deletes="op = 'd'",
    column_list=["key", "value", "expires_at"],
)
