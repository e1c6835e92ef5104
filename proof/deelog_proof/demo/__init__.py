"""The demo and the player: load, faults and the proof, driven from outside as a user would.

traces, load      what is written: recorded histories and a generated session store
player, history   writes through `RedisCluster`, and when they were acknowledged
environment, cluster, redis_cluster   real caches, a real Kafka and a Spark job as processes
faults, redis_faults      what happens to them
topics, audit, verify        an independent consumer, and the comparison of caches, topic and diff
report, demo, cli            what people see
"""
