"""The demo and the player: load, faults and the proof, driven from outside as a user would drive them.

traces, load      what is written: recorded histories and a generated session store
player, history   writing it through `RedisCluster`, and remembering what was acknowledged when
processes, cluster, faults   real nodes, a real Kafka and a Spark job as processes, and what happens to them
topics, audit, verify        an independent consumer, and the comparison of everything with everything
report, demo, cli            what people see
"""
