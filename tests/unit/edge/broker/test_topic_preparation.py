"""Topics at a start: changelog topics that it finds or creates, topics of global tables, and whether brokers create topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import millstream as ms
from millstream.core.model.errors import (
    BrokerUnavailableError,
    MillstreamError,
    SettingsError,
    TopicNotFoundError,
)
from millstream.core.topology.layout import default_grouper, lay_out
from millstream.core.topology.plan import Plan
from millstream.edge.broker.topic_preparation import TopicPreparation, creates_topics, global_partitions


class Broker:
    """Has changelog topics of two partitions with the given numbers of records, and records which ones are created."""

    def __init__(self, **records: int) -> None:
        self.records = {f"app-{store}-changelog": count for store, count in records.items()}
        self.created: list[str] = []
        self.first = 3

    def begin_offsets(self, counts: Mapping[str, int]) -> Any:
        return {topic: {0: self.first, 1: 0} for topic in counts}

    def end_offsets(self, counts: Mapping[str, int]) -> Any:
        return {topic: {0: self.first + self.records[topic], 1: 0} for topic in counts}

    def ensure_topic(self, topic: str, *_: Any) -> None:
        self.created.append(topic)


def test_an_existing_changelog_topic_without_records_counts_as_new() -> None:
    """A start that was killed before its first micro-batch may have created it, and published no records to it."""
    builder = ms.StreamsBuilder()
    for name in ("full", "empty", "missing"):
        builder.table(name, store=ms.stores.options(name, changelog="kafka"))
    plan = builder.build().plan("app")
    layout = lay_out(plan, {"full": 2, "empty": 2, "missing": 2}, default_grouper)
    broker: Any = Broker(full=1, empty=0)
    existing = dict.fromkeys(broker.records, 2)
    assert TopicPreparation(broker, 1).prepare_changelogs(plan, layout, existing) == ["empty", "missing"]
    assert broker.created == ["app-missing-changelog"]


def windows() -> Plan:
    builder = ms.StreamsBuilder()
    counts = ms.stores.options("counts", changelog="kafka")
    builder.stream("in").group_by_key().windowed_by(ms.TumblingWindows(60_000, grace=0)).count(store=counts)
    return builder.build().plan("app")


class BrokerWithExpiredRecords(Broker):
    """A broker whose retention has deleted all records of the changelog topics."""

    committed = True

    def committed_offsets(self, counts: Mapping[str, int]) -> Any:
        return {topic: {0: 7, 1: 7} for topic in counts} if self.committed else {}


@pytest.mark.parametrize(
    ("deleted", "committed", "rebuilds"), [(3, True, True), (3, False, False), (0, True, False)]
)
def test_an_application_whose_windows_have_all_expired_continues_at_the_committed_offsets(
    deleted: int, *, committed: bool, rebuilds: bool
) -> None:
    """Its checkpoint was lost while it had no input, for example over a weekend. It must not process everything again."""
    broker: Any = BrokerWithExpiredRecords(counts=0)
    broker.first, broker.committed = deleted, committed
    found = TopicPreparation(broker, 1).can_rebuild(windows(), {"in": 2, "app-counts-changelog": 2})
    assert found is rebuilds


class BrokerWithConfig:
    """A broker with the configuration of the commits topic, or None if this user may not see it."""

    timeout_s = 1.0

    def __init__(self, config: dict[str, str] | None) -> None:
        self._config = config

    def admin(self) -> Any:
        return self

    def describe_configs(self, wanted: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        answer: Future[Any] = Future()
        assert self._config is not None
        answer.set_result({name: SimpleNamespace(value=value) for name, value in self._config.items()})
        return dict.fromkeys(wanted, answer)

    def ask(self, doing: str, question: Callable[[], Any]) -> Any:
        if self._config is None:
            denied = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
            raise MillstreamError(doing) from denied
        return question()


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_commits_topic_whose_records_expire_is_refused(policy: str) -> None:
    """The marks of a Spark partition without deliveries for a week were gone, and its next delivery ended the application."""
    broker: Any = BrokerWithConfig({"cleanup.policy": policy, "message.timestamp.type": "CreateTime"})
    preparation = TopicPreparation(broker, 1)
    with pytest.raises(SettingsError, match=r"'app-commits' has cleanup.policy=.*cleanup.policy=\[compact\]"):
        preparation.check_commits("app-commits", {"app-commits": 1})
    preparation.check_commits("app-commits", {})


@pytest.mark.parametrize("config", [{"cleanup.policy": "compact"}, {}, None])
def test_any_other_commits_topic_is_accepted(config: dict[str, str] | None) -> None:
    broker: Any = BrokerWithConfig(config)
    TopicPreparation(broker, 1).check_commits("app-commits", {"app-commits": 1})


def test_a_missing_topic_of_a_global_table_is_named() -> None:
    builder = ms.StreamsBuilder()
    table = builder.global_table("products", store="goods")
    builder.stream("orders").join(table, lambda k, v: v, lambda v, row: row).to("out")
    plan = builder.build().plan()
    assert global_partitions(plan, {"products": 3, "orders": 1}) == {"products": 3}
    with pytest.raises(TopicNotFoundError, match="do not exist on the broker: 'products'"):
        global_partitions(plan, {"orders": 1})


class Brokers:
    """Brokers by number, each with the value of the setting, or None if the broker does not show it."""

    def __init__(self, values: Mapping[int, str | None], **settings: Any) -> None:
        self.settings = settings
        self.timeout_s = 1.0
        self._values = values

    def admin(self) -> Brokers:
        return self

    def ask(self, doing: str, question: Callable[[], Any]) -> Any:
        return question()

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(brokers=dict.fromkeys(self._values))

    def describe_configs(self, wanted: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        (resource,) = wanted
        value, future = self._values[int(resource.name)], Future[Any]()
        future.set_result(
            {} if value is None else {"auto.create.topics.enable": SimpleNamespace(value=value)}
        )
        return {resource: future}


class RefusingBrokers(Brokers):
    def __init__(self, error: MillstreamError) -> None:
        super().__init__({1: "true"})
        self._error = error

    def ask(self, doing: str, question: Callable[[], Any]) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("brokers", "expected"),
    [
        (Brokers({1: "true"}), True),
        (Brokers({1: "false", 2: "true"}), True),
        (Brokers({1: "false", 2: "false"}), False),
        (Brokers({1: None}), None),
        (Brokers({1: "false", 2: None}), None),
        (Brokers({1: "true"}, **{"allow.auto.create.topics": "False"}), False),
        (RefusingBrokers(MillstreamError("Kafka refuses access")), None),
    ],
)
def test_the_settings_of_brokers_and_clients_say_whether_a_missing_topic_is_created(
    brokers: Any, expected: bool | None
) -> None:
    assert creates_topics(brokers) is expected


def test_brokers_that_do_not_answer_are_an_error() -> None:
    brokers: Any = RefusingBrokers(BrokerUnavailableError("nobody answers"))
    with pytest.raises(BrokerUnavailableError):
        creates_topics(brokers)
