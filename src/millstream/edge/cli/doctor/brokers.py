"""Checks of Kafka: brokers, their addresses, topics, and the jars of the embedded broker.

A separate check covers a common problem: a bootstrap server answers, but this machine cannot reach the addresses that it *advertises*,
which clients use for all further requests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from millstream.core.model.errors import MillstreamError, SettingsError
from millstream.core.topology.plan import counted
from millstream.drivers.kafka.secret_references import with_secrets
from millstream.edge.cli.doctor.finding import Finding, Findings, Inquiry
from millstream.edge.cli.doctor.probe import unreachable

_MAVEN = ("repo1.maven.org", 443)


def check_brokers(inquiry: Inquiry) -> list[Finding]:
    """Check that brokers answer, that their advertised addresses are reachable, and that the topics exist."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    servers = inquiry.bootstrap_servers
    if servers is None:
        if not inquiry.topics:
            return []
        return [
            Finding("broker", False, "no broker address is configured", "add --bootstrap-servers host:port")
        ]
    problems: list[str] = []
    own = {
        "bootstrap.servers": servers,
        "log_level": 0,
        "error_cb": lambda error: problems.append(error.str()),
    }
    try:
        admin = AdminClient(with_secrets({**inquiry.client, **own}))
        try:
            metadata = admin.list_topics(timeout=inquiry.timeout_s)
        finally:
            admin.poll(0)  # calls error_cb
    except (KafkaException, SettingsError, ValueError) as error:
        return [broker_finding(servers, None, problems or [str(error)])]
    addresses = sorted((str(broker.host), int(broker.port)) for broker in metadata.brokers.values())
    counts = {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.error is None}
    return [
        broker_finding(servers, len(addresses), problems),
        advertised_finding(addresses, unreachable(addresses, inquiry.timeout_s)),
        *(topic_finding(topic, counts, servers) for topic in inquiry.topics),
    ]


def broker_finding(servers: str, brokers: int | None, problems: Sequence[str]) -> Finding:
    """Judge the number of brokers in the cluster; None if none answered."""
    fix = (
        f"start a broker at {servers}, or say where it is with --bootstrap-servers; if it wants TLS or SASL, put the "
        """settings into the environment, for example MILLSTREAM_KAFKA='{"security.protocol": "SASL_SSL", ...}'"""
    )
    if brokers is None:
        complaints = dict.fromkeys(re.sub(r" \(after [^)]*\)", "", problem) for problem in problems)
        return Finding("broker", False, f"{servers} does not answer: {'; '.join(complaints)}", fix)
    return Finding("broker", brokers > 0, f"{servers} answers; brokers in the cluster: {brokers}", fix)


def advertised_finding(
    addresses: Sequence[tuple[str, int]], unreachable: Mapping[tuple[str, int], str]
) -> Finding:
    name = "advertised addresses"
    if not unreachable:
        return Finding(name, True, f"{_address_list(addresses)} can be reached")
    why = "; ".join(f"{host}:{port}: {problem}" for (host, port), problem in unreachable.items())
    fix = (
        "set advertised.listeners of those brokers to addresses that this machine can resolve and reach, or make these "
        "addresses reachable from here (DNS, /etc/hosts, firewall)"
    )
    return Finding(
        name, False, f"the brokers send clients to addresses that cannot be reached from here: {why}", fix
    )


def topic_finding(topic: str, partition_counts: Mapping[str, int], servers: str) -> Finding:
    count = partition_counts.get(topic)
    fix = f"kafka-topics.sh --bootstrap-server {servers} --create --topic {topic} --partitions 4"
    detail = "does not exist" if count is None else counted(count, "partition")
    return Finding(f"topic {topic}", count is not None, detail, fix)


def _address_list(addresses: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in addresses)


def check_jars(inquiry: Inquiry) -> Findings:
    """Check that the embedded broker has its jars or can download them."""
    from millstream.drivers.cache import cache_directory
    from millstream.testing._jars import KAFKA_VERSION

    own = os.environ.get("MILLSTREAM_KAFKA_JARS")
    if own:
        return _own_jars(own)
    folder = cache_directory() / f"kafka-{KAFKA_VERSION}"
    if any(folder.glob("kafka_2.13-*.jar")):
        return Finding("Kafka jars", True, f"in {folder}")
    ivy = os.environ.get("MILLSTREAM_IVY_SETTINGS")
    if ivy:
        return Finding(
            "Kafka jars", True, f"not present yet; the first use resolves them with the settings in {ivy}"
        )
    fix = (
        "for `millstream demo` and EmbeddedKafka: set MILLSTREAM_IVY_SETTINGS to an Ivy settings file that names your mirror, "
        "or MILLSTREAM_KAFKA_JARS to the directory libs of a Kafka distribution"
    )
    problem = unreachable([_MAVEN], inquiry.timeout_s).get(_MAVEN)
    if problem is None:
        return Finding("Kafka jars", True, f"not present yet; the first use downloads them from {_MAVEN[0]}")
    return Finding("Kafka jars", False, f"not in {folder}, and {_MAVEN[0]} cannot be reached: {problem}", fix)


def _own_jars(directory: str) -> Finding:
    from millstream.testing._jars import kafka_jars

    try:
        kafka_jars()
    except MillstreamError as error:
        return Finding(
            "Kafka jars",
            False,
            str(error),
            "set MILLSTREAM_KAFKA_JARS to the directory with the jars of a broker, or unset it",
        )
    return Finding("Kafka jars", True, f"in {directory} (MILLSTREAM_KAFKA_JARS)")
