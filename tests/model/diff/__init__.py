"""The Spark job: a change topic that is compacted and truncated, a job that dies anywhere, and its diff topic."""
