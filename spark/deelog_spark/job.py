"""The diff job as a script: what `spark-submit` and `python -m deelog_spark.job` start."""

if __name__ == "__main__":
    from deelog_spark.cli import diff

    diff()
