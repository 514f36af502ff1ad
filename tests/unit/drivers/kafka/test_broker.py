"""Requests to the broker that are repeated after an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException

from millstream.core.model.errors import BrokerUnavailableError, TopicNotFoundError
from millstream.core.model.ids import TopicPartition
from millstream.drivers.kafka.admin_client import ExplainingAdminClient
from millstream.drivers.kafka.broker import Broker
from millstream.drivers.kafka.election import living_drivers
from millstream.testing._cluster import free_ports

PARTITIONS = [TopicPartition("in", number) for number in range(3)]


def failing(times: float, code: int) -> Callable[[], int]:
    """Return a request that fails ``times`` times, and then returns the number of attempts."""
    attempts = 0

    def question() -> int:
        nonlocal attempts
        attempts += 1
        if attempts <= times:
            raise KafkaException(KafkaError(code, "Failed to query partition leaders"))
        return attempts

    return question


def timing_out(times: float) -> Callable[[], int]:
    return failing(times, KafkaError._TIMED_OUT)


def unreachable_broker(timeout_s: float) -> Broker:
    return Broker(
        {"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}", "log_level": 0}, "group", timeout_s=timeout_s
    )


def test_a_request_that_times_out_is_repeated() -> None:
    assert unreachable_broker(1).ask("asking", timing_out(2)) == 3


def test_offsets_that_are_missing_after_the_loss_of_a_broker_are_requested_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Previously, an application that started during the restart of a leader failed at once."""
    answers = iter([-1, -1, 7])

    def answer(_: Broker, wanted: dict[Any, Any], **__: bool) -> dict[Any, Any]:
        return {partition: SimpleNamespace(offset=next(answers)) for partition in wanted}

    monkeypatch.setattr(Broker, "_answers", answer)
    assert unreachable_broker(5).end_offsets({"topic": 1}) == {"topic": {0: 7}}


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (lambda broker: broker.offsets_at({"in": 3}, 1), {"in": {0: 4, 1: 7}}),
        (lambda broker: broker.newest(PARTITIONS), {PARTITIONS[0]: (4, 5), PARTITIONS[1]: (7, 5)}),
    ],
)
def test_a_lost_broker_is_not_mistaken_for_a_partition_without_newer_records(
    monkeypatch: pytest.MonkeyPatch, question: Callable[[Broker], Any], answer: Any
) -> None:
    """Previously, a run, a reset or an offset reset by time began at the end of the partition and skipped records."""
    offsets = iter([OFFSET_INVALID, 7, OFFSET_END, 4, 7, OFFSET_END])

    def answers(_: Broker, wanted: dict[Any, Any], **__: bool) -> dict[Any, Any]:
        return {partition: SimpleNamespace(offset=next(offsets), timestamp=5) for partition in wanted}

    monkeypatch.setattr(Broker, "_answers", answers)
    monkeypatch.setattr(Broker, "admin", lambda _: Admin({}))
    assert question(unreachable_broker(5)) == answer


def test_a_request_is_repeated_after_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a request fails at once. Previously, the restart of a leader ended the application."""
    monkeypatch.setattr(Broker, "admin", lambda _: Admin({}))
    assert unreachable_broker(2).ask("asking", failing(2, KafkaError._NOENT)) == 3


def test_a_request_that_has_waited_for_a_connection_is_not_repeated() -> None:
    def question() -> None:
        sleep(0.25)
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    began = monotonic()
    with pytest.raises(BrokerUnavailableError):
        unreachable_broker(0.4).ask("asking", question)
    assert monotonic() - began < 0.4


class Admin:
    """An admin client whose first answers to a request are the given errors."""

    def __init__(self, topics: Mapping[str, int], *errors: int) -> None:
        self.topics = dict(topics)
        self.errors = list(errors)
        self.lose_answers = False
        """Whether a request is carried out although its answer is an error."""

    def list_topics(self, **_: Any) -> Any:
        return SimpleNamespace(
            topics={
                t: SimpleNamespace(partitions=dict.fromkeys(range(n)), error=None)
                for t, n in self.topics.items()
            }
        )

    def create_topics(self, new: Sequence[Any], **_: Any) -> dict[str, Future[None]]:
        (topic,) = new
        if topic.topic in self.topics:
            return {topic.topic: self._answer(KafkaError.TOPIC_ALREADY_EXISTS)}
        return {topic.topic: self._answer(None, lambda: self._set(topic.topic, topic.num_partitions))}

    def create_partitions(self, new: Sequence[Any], **_: Any) -> dict[str, Future[None]]:
        (more,) = new
        if self.topics[more.topic] >= more.new_total_count:
            return {more.topic: self._answer(KafkaError.INVALID_PARTITIONS)}
        return {more.topic: self._answer(None, lambda: self._set(more.topic, more.new_total_count))}

    def delete_topics(self, topics: Sequence[str], **_: Any) -> dict[str, Future[None]]:
        (topic,) = topics
        if topic not in self.topics:
            return {topic: self._answer(KafkaError.UNKNOWN_TOPIC_OR_PART)}
        return {topic: self._answer(None, lambda: self.topics.__delitem__(topic))}

    def list_consumer_groups(self, **_: Any) -> Future[Any]:
        errors = [KafkaError(self.errors.pop(0))] if self.errors else []
        answer = Future[Any]()
        answer.set_result(SimpleNamespace(valid=[SimpleNamespace(group_id="shop")], errors=errors))
        return answer

    def last_problem(self) -> None: ...

    def _set(self, topic: str, partitions: int) -> None:
        self.topics[topic] = partitions

    def _answer(self, error: int | None, change: Callable[[], None] = lambda: None) -> Future[None]:
        answer = Future[None]()
        failure = self.errors.pop(0) if self.errors else error
        if failure is None or self.lose_answers:
            change()
        if failure is None:
            answer.set_result(None)
        else:
            answer.set_exception(KafkaException(KafkaError(failure)))
        return answer


class TestRepeatedRequests:
    @pytest.fixture(params=[False, True], ids=["lost request", "lost answer"])
    def admin(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Admin:
        fake_admin = Admin({"old": 1}, KafkaError._TIMED_OUT)
        fake_admin.lose_answers = request.param
        monkeypatch.setattr(Broker, "admin", lambda _: fake_admin)
        return fake_admin

    def test_create_a_topic(self, admin: Admin) -> None:
        unreachable_broker(5).create_topic("new", 3, {})
        assert admin.topics["new"] == 3

    def test_add_partitions(self, admin: Admin) -> None:
        assert unreachable_broker(5).ensure_topic("old", 4, {}) == 4
        assert admin.topics["old"] == 4

    def test_delete_a_topic(self, admin: Admin) -> None:
        admin.errors = [KafkaError.NOT_COORDINATOR]
        unreachable_broker(5).delete_topic("old")
        assert admin.topics == {}

    def test_leave_an_existing_topic_unchanged(self, admin: Admin) -> None:
        unreachable_broker(5).create_topic("old", 3, {})
        assert admin.topics == {"old": 1}


def test_listing_groups_waits_for_a_coordinator_that_is_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Previously, a reset that did not see all groups deleted the topics of another application."""
    admin = Admin({}, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    monkeypatch.setattr(Broker, "admin", lambda _: admin)
    assert unreachable_broker(5).groups() == ["shop"]
    assert admin.errors == []
    admin.errors = [KafkaError.COORDINATOR_LOAD_IN_PROGRESS] * 100
    with pytest.raises(BrokerUnavailableError, match="while listing groups"):
        unreachable_broker(0.4).groups()


class AdminWithoutTopic:
    """An admin client that does not know the topics of a request."""

    def last_problem(self) -> None: ...

    def list_offsets(self, wanted: Mapping[Any, Any], **_: Any) -> dict[Any, Future[None]]:
        answer = Future[None]()
        answer.set_exception(KafkaException(KafkaError(KafkaError._NOENT, "No leaders found")))
        return dict.fromkeys(wanted, answer)

    def list_topics(self, **_: Any) -> Any:
        return SimpleNamespace(topics={"here": None})


def test_a_topic_that_the_client_does_not_know_is_reported_as_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client raises the same error for a broker that does not answer. Previously, the application waited forever."""
    monkeypatch.setattr(Broker, "admin", lambda _: AdminWithoutTopic())
    with pytest.raises(TopicNotFoundError, match="no topic 'gone'"):
        unreachable_broker(0.4).end_offsets({"gone": 1})
    with pytest.raises(BrokerUnavailableError, match="No leaders found"):
        unreachable_broker(0.4).end_offsets({"here": 1})


def test_requests_are_repeated_until_the_timeout() -> None:
    began = monotonic()
    with pytest.raises(BrokerUnavailableError, match="while asking for offsets"):
        unreachable_broker(0.4).ask("asking for offsets", timing_out(float("inf")))
    assert 0.4 <= monotonic() - began < 5


def test_a_future_that_times_out_is_reported_as_an_unavailable_broker() -> None:
    """Previously, its TimeoutError ended the thread of the election when a broker was killed."""
    with pytest.raises(BrokerUnavailableError, match="while describing group 'drivers'"):
        unreachable_broker(0.4).ask("describing group 'drivers'", lambda: Future[int]().result(0))


def test_looking_up_living_drivers_fails_if_the_broker_does_not_respond() -> None:
    with pytest.raises(BrokerUnavailableError, match="while describing group"):
        living_drivers(unreachable_broker(0.4), "shop")


def test_a_group_is_not_described_without_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Previously, an assertion of librdkafka ended the process when a network had been cut for a minute."""
    described: list[list[str]] = []
    monkeypatch.setattr(
        ExplainingAdminClient, "describe_consumer_groups", lambda _, groups, **__: described.append(groups)
    )
    unreachable_broker(0.4).admin().check_group("shop", 0.1)
    assert not described
