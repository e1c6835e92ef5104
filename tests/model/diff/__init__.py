"""The Spark job: a change topic that is compacted and cut, a job that dies anywhere, and what its diff topic tells."""
