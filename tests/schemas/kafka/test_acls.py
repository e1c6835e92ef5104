"""A refused request as the ACL to grant: which right, on what, for whom."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from deelog_schemas.kafka.acls import missing_acl

ASKED = {
    "topic": ("Write", "shop.sessions"),
    "group": ("Read", "shop.sessions.diff"),
    "transactional_id": ("Write", "shop/sessions/node/n1"),
    "cluster": ("IdempotentWrite", "kafka-cluster"),
}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "topic"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "group"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional id"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "cluster"),
    ],
)
def test_the_right_that_the_request_needed_is_named(code: int, kind: str) -> None:
    right, name = ASKED[kind.replace(" ", "_")]
    told = missing_acl(KafkaError(code), "producer", **ASKED)
    assert told is not None
    assert told.startswith(f"Kafka refuses {right} on {kind} {name} to the user of producer.override.*: grant it")
    unknown = missing_acl(KafkaError(code), "admin")
    assert unknown is not None
    assert unknown.startswith(f"Kafka refuses a right on {kind} that the request named to the user of admin.override.*")


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._AUTHENTICATION, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_what_is_not_about_rights_names_none(code: int) -> None:
    assert missing_acl(KafkaError(code), "producer", **ASKED) is None
