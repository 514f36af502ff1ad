"""Identifiers of a partition of a topic, and of the task that processes it."""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of a topic.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition, from 0.

    Source: ``org.apache.kafka.common.TopicPartition``.

    Example:
        >>> str(TopicPartition("orders", 3))
        'orders-3'
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TaskId(NamedTuple):
    """A task: one sub-topology on one partition group, written ``0_3``.

    Attributes:
        subtopology: Number of the sub-topology, from 0.
        partition: Number of the partition group, from 0.

    Source: KIP-28; ``org.apache.kafka.streams.processor.TaskId``.

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
        """Parse a task id in the format of ``str(task_id)``. For an example, see :class:`TaskId`.

        Args:
            text: The task id, such as ``0_3``.

        Returns:
            The task.

        Raises:
            ValueError: If the text has another format.

        Source: ``TaskId.parse``.
        """
        subtopology, partition = text.split("_")
        return cls(int(subtopology), int(partition))
