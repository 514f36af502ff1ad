"""Whether brokers create topics, as their configuration or the refusal to show it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.core.model.errors import BrokerUnavailableError, MillstreamError
from millstream.edge.broker.topic_preparation import creates_topics


class Brokers:
    """Brokers by number, each with the value of the setting; None if it does not show it."""

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


class Refusing(Brokers):
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
        (Refusing(MillstreamError("Kafka refuses access")), None),
    ],
)
def test_whether_a_missing_topic_is_created(brokers: Any, expected: bool | None) -> None:
    assert creates_topics(brokers) is expected


def test_brokers_that_do_not_answer_are_an_error() -> None:
    with pytest.raises(BrokerUnavailableError):
        creates_topics(Refusing(BrokerUnavailableError("nobody answers")))  # type: ignore[arg-type]
