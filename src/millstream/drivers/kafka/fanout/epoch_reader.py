"""Reads the epochs of split partitions for an application. Implements ``Epochs`` and ``EpochReader``."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.core.fanout.epochs import History
from millstream.drivers.kafka.clients import ClientSettings
from millstream.drivers.kafka.fanout.control_log import ControlReader


@dataclass(frozen=True)
class KafkaEpochs:
    """The epochs of topics with fan-out. Picklable."""

    settings: ClientSettings = field(repr=False)
    topics: tuple[str, ...]
    timeout_s: float

    def open(self) -> KafkaEpochReader:
        return KafkaEpochReader(
            [ControlReader(self.settings, topic, self.timeout_s) for topic in self.topics]
        )


class KafkaEpochReader:
    """Follows the control topics."""

    def __init__(self, topics: list[ControlReader]) -> None:
        self._topics = topics

    def histories(self) -> tuple[History, ...]:
        for topic in self._topics:
            topic.read_on()
        return tuple(state.history for topic in self._topics for state in topic.ledger.states().values())
