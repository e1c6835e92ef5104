"""The ACL to grant where Kafka's authorizer refuses a request: the right, the resource, and the client that needs it.

The brokers only say "Topic authorization failed". They do not say which right, on which of five topics, for which of
three clients. Weighed in docs/decisions.md, "A missing right is named".
"""

from __future__ import annotations

from typing import Any, Final

_PAGE: Final = "docs/howto/acls.md has the least set"
_KINDS: Final = {
    "TOPIC_AUTHORIZATION_FAILED": "topic",
    "GROUP_AUTHORIZATION_FAILED": "group",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "transactional id",
    "CLUSTER_AUTHORIZATION_FAILED": "cluster",
}


def missing_acl(error: Any, client: str, **asked: tuple[str, str]) -> str | None:
    """The ACL to grant, as a sentence; None where the error is not about rights.

    `error` is a client's `KafkaError`, `client` one of `producer`, `consumer`, `admin`. `asked` has, for each kind of
    resource that the request touched (`topic`, `group`, `transactional_id`, `cluster`), the right and the name.
    """
    kind = _KINDS.get(error.name())
    if kind is None:
        return None
    right, name = asked.get(kind.replace(" ", "_"), ("a right", "that the request named"))
    return (
        f"Kafka refuses {right} on {kind} {name} to the user of {client}.override.*: grant it to that user, or set "
        f"another one ({_PAGE})"
    )
