"""The librdkafka settings for `producer.override.*`, `consumer.override.*` and `admin.override.*`.

It is an allow-list (docs/decisions.md, "Overrides are an allow-list"). Settings that a user is likely to try, but that
are refused, have the reason next to them.
"""

from __future__ import annotations

import re
from typing import Final

from deelog_schemas.config.field import words

CLIENTS: Final = ("producer", "consumer", "admin")

# Security, sockets, names, timeouts of single requests: they change how a client reaches Kafka, not what it does there.
_COMMON: Final = words(
    """
    security.protocol sasl.mechanism sasl.mechanisms sasl.username sasl.password
    sasl.kerberos.service.name sasl.kerberos.principal sasl.kerberos.keytab
    sasl.oauthbearer.method sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.scope
    sasl.oauthbearer.extensions sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.config
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.key.location ssl.key.pem
    ssl.key.password ssl.keystore.location ssl.keystore.password ssl.crl.location
    ssl.cipher.suites ssl.curves.list ssl.sigalgs.list
    ssl.endpoint.identification.algorithm enable.ssl.certificate.verification
    client.id client.dns.lookup client.rack broker.address.family broker.address.ttl
    socket.timeout.ms socket.send.buffer.bytes socket.receive.buffer.bytes socket.keepalive.enable
    socket.nagle.disable socket.max.fails socket.connection.setup.timeout.ms connections.max.idle.ms
    reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms
    topic.metadata.refresh.interval.ms metadata.max.age.ms topic.metadata.refresh.fast.interval.ms
    message.max.bytes message.copy.max.bytes receive.message.max.bytes
    statistics.interval.ms debug log_level log.connection.close
    """
)

_PRODUCER: Final = words(
    """
    linger.ms queue.buffering.max.ms batch.size batch.num.messages
    compression.type compression.codec compression.level
    queue.buffering.max.messages queue.buffering.max.kbytes queue.buffering.backpressure.threshold
    request.timeout.ms
    """
)

_CONSUMER: Final = words(
    """
    fetch.min.bytes fetch.wait.max.ms fetch.max.bytes fetch.message.max.bytes max.partition.fetch.bytes
    fetch.error.backoff.ms fetch.queue.backoff.ms queued.min.messages queued.max.messages.kbytes check.crcs
    """
)

ALLOWED: Final = {"producer": _COMMON | _PRODUCER, "consumer": _COMMON | _CONSUMER, "admin": _COMMON}

_OWN_FIELD = "has a field of its own: set {}"
_ID = "is made from the change topic and node.id: fencing rests on it"
_ORDER = "records would be lost, repeated or reordered without the value that the writer sets"
_READS = "readers of deelog see only committed records and go by offsets that they were given"
_GROUP = "membership decides who is controller; it is not for tuning"
_NEVER_GIVES_UP = "a producer that gives up on a record by itself leaves a gap; the value is 0, never"
_CODE = "loads code into the process"
_COMMAND = "runs a shell command"

REFUSED: Final = {
    "bootstrap.servers": _OWN_FIELD.format("bootstrap.servers"),
    "metadata.broker.list": _OWN_FIELD.format("bootstrap.servers"),
    "transaction.timeout.ms": _OWN_FIELD.format("transaction.timeout.ms"),
    "session.timeout.ms": "is three times cache.failure.timeout.ms: set that",
    "transactional.id": _ID,
    "group.id": _ID,
    "group.instance.id": _ID,
    "enable.idempotence": _ORDER,
    "enable.gapless.guarantee": _ORDER,
    "acks": _ORDER,
    "request.required.acks": _ORDER,
    "retries": _ORDER,
    "message.send.max.retries": _ORDER,
    "max.in.flight": _ORDER,
    "max.in.flight.requests.per.connection": _ORDER,
    "partitioner": "the partition of a record is that of its segment",
    "sticky.partitioning.linger.ms": "the partition of a record is that of its segment",
    "message.timeout.ms": _NEVER_GIVES_UP,
    "delivery.timeout.ms": _NEVER_GIVES_UP,
    "isolation.level": _READS,
    "auto.offset.reset": _READS,
    "enable.auto.commit": _READS,
    "auto.commit.enable": _READS,
    "auto.commit.interval.ms": _READS,
    "enable.auto.offset.store": _READS,
    "enable.partition.eof": _READS,
    "allow.auto.create.topics": "a topic made by accident has the wrong partitions; deelog creates and audits its own",
    "partition.assignment.strategy": _GROUP,
    "group.protocol": _GROUP,
    "group.remote.assignor": _GROUP,
    "heartbeat.interval.ms": _GROUP,
    "max.poll.interval.ms": _GROUP,
    "plugin.library.paths": _CODE,
    "ssl.engine.location": _CODE,
    "ssl.engine.id": _CODE,
    "ssl.providers": _CODE,
    "ssl_engine_callback_data": _CODE,
    "sasl.kerberos.kinit.cmd": _COMMAND,
    "enable.sasl.oauthbearer.unsecure.jwt": "accepts tokens that nobody signed",
    "internal.termination.signal": "is librdkafka's own",
    "opaque": "is librdkafka's own",
    "default_topic_conf": "is librdkafka's own",
    "test.mock.num.brokers": "replaces Kafka by a mock",
}


# librdkafka puts the principal and the key table into a shell command, so they may have no characters special to it.
_SHELL_SAFE = re.compile(r"[A-Za-z0-9._/@:-]+")
PATTERNS: Final = {
    "message.max.bytes": re.compile(r"[0-9]{1,10}"),
    "sasl.kerberos.principal": _SHELL_SAFE,
    "sasl.kerberos.keytab": _SHELL_SAFE,
    "sasl.kerberos.service.name": _SHELL_SAFE,
}


def refusal(client: str, setting: str) -> str | None:
    """Why `<client>.override.<setting>` is refused, or None where it is accepted."""
    if setting in ALLOWED[client]:
        return None
    reason = REFUSED.get(setting)
    if reason is None and setting.endswith("_cb"):
        reason = "callbacks are code; a file cannot hold them"
    if reason is not None:
        return f"must not be set: {reason}"
    if any(setting in allowed for allowed in ALLOWED.values()):
        return f"is no setting of the {client}"
    return f"is not among the settings of the {client} that may be overridden"
