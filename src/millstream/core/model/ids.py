"""Identifiers of a partition of a topic, and of the task that processes it."""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TaskId(NamedTuple):
    """A task: one sub-topology on one partition group (KIP-28; Kafka Streams: ``TaskId``), written ``0_3``.

    Example:
        >>> str(TaskId(0, 3)), TaskId.parse("0_3")
        ('0_3', TaskId(subtopology=0, partition=3))
    """

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Parse a task id in the format of ``str(task_id)``."""
        subtopology, partition = text.split("_")
        return cls(int(subtopology), int(partition))
