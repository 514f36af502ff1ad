"""Permissions on a broker with an authorizer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from millstream.testing import EmbeddedKafka

_RESOURCES: Final = {
    "topic": ResourceType.TOPIC,
    "topics": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "groups": ResourceType.GROUP,
    "transactional ids": ResourceType.TRANSACTIONAL_ID,
}


def grant(kafka: EmbeddedKafka, permissions: Iterable[str], user: str) -> None:
    """Grant permissions, such as "Write on topics with the prefix shop-", to a user; "*" means all users."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.create_acls([_binding(permission, user) for permission in permissions]).values():
        future.result(30)


def _binding(permission: str, user: str) -> AclBinding:
    match = re.fullmatch(r"(\w+) on ([a-z ]+?)( with the prefix)? (\S+)", permission)
    assert match is not None, permission
    operation, resource, prefix, name = match.groups()
    pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
    with_underscores = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()
    return AclBinding(
        _RESOURCES[resource],
        name,
        pattern,
        f"User:{user}",
        "*",
        AclOperation[with_underscores],
        AclPermissionType.ALLOW,
    )
