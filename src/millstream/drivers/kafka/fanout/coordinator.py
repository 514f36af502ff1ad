"""The coordinator of changes: splits and merges partitions, and fences producers that do not answer. ``ledger`` defines the protocol."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic, sleep
from typing import Final

from confluent_kafka import KafkaException, Producer

from millstream.core.fanout.epochs import fan_out_topic
from millstream.core.fanout.ledger import HOLDING, PartitionState, member_key
from millstream.core.model.errors import BrokerUnavailableError, FanOutError
from millstream.core.model.ids import TopicPartition
from millstream.drivers.kafka.clients import QUICK_CONNECTION, ClientSettings, connect, create_client
from millstream.drivers.kafka.fanout.control_log import ControlLog, connection, encoded
from millstream.drivers.kafka.fanout.inherited_settings import own_config, replica_count

_ANSWER_S: Final = 2.0
"""Timeout for a producer's acknowledgement of an announced change, in seconds. No producer is restricted while the coordinator waits."""
_HOLD_S: Final = 0.15
"""Timeout for a producer to hold back records before it is fenced, in seconds."""
_THREADS: Final = 32
"""Maximum number of sessions that are fenced at the same time. Each needs a client, with threads and connections."""
_TIMEOUT_MS: Final = 5_000
_RETRY_S: Final = 0.02


class Coordinator:
    """Changes the fan-out of a topic's partitions.

    Raises:
        TopicNotFoundError: If the topic does not exist.
        BrokerUnavailableError: If no broker answers in time.
    """

    def __init__(self, settings: ClientSettings, topic: str, patience_s: float = 10.0) -> None:
        self._settings = connection(settings)
        self._topic = topic
        self._log = ControlLog(settings, topic, patience_s)
        self._broker = self._log.broker
        self._partitions = self._log.partitions

    def states(self) -> dict[int, PartitionState]:
        self._log.barrier()
        return self._log.ledger.states()

    def members(self) -> set[str]:
        return set(self._log.ledger.members)

    def change(self, partition: int, ranges: int) -> PartitionState:
        """Split a partition into key ranges or merge it. Return its state after the change.

        Args:
            ranges: Number of key ranges. 1 merges the partition.

        Raises:
            FanOutError: If the partition does not exist, or the change was cancelled by another coordinator or a producer.
        """
        if not 0 <= partition < self._partitions:
            raise FanOutError(
                f"topic {self._topic!r} has no partition {partition}; its partitions are 0 to {self._partitions - 1}"
            )
        if ranges < 1:
            raise FanOutError(f"a partition has at least 1 key range, not {ranges}")
        if ranges > 1:
            self._prepare_fan_out_topic(TopicPartition(self._topic, partition), ranges)
        producer = take_over(self._settings, self._log)
        self._log.barrier()
        state = self._log.ledger.state(partition)
        if state.pending is None and state.history.current.ranges == ranges:
            return state
        # Here, not only at the end: if the change is cancelled, the fan-out topic exists, and must not seem to be unread.
        state = replace(state, history=state.history.without_deleted(self._ends(state, ranges)))
        state = state.announced(ranges)
        self._phase(producer, state, _ANSWER_S)
        state = state.holding()
        self._phase(producer, state, _HOLD_S)
        state = state.finished(self._ends(state, ranges))
        write(producer, self._log, state)
        return state

    def close(self) -> None:
        self._log.close()

    def _prepare_fan_out_topic(self, primary: TopicPartition, ranges: int) -> None:
        topic, broker = fan_out_topic(primary), self._broker
        if broker.partition_counts([topic]):
            broker.ensure_topic(topic, ranges, {})
        else:
            config = own_config(broker, primary.topic)
            broker.create_topic(topic, ranges, config, replica_count(broker, primary.topic))

    def _phase(self, producer: Producer, state: PartitionState, wait_s: float) -> None:
        """Begin a phase. When it returns, each session has acknowledged it, or is fenced and deleted."""
        write(producer, self._log, state)
        ledger, number = self._log.ledger, state.history.primary.partition
        self._log.expect(lambda: ledger.state(number).phase == state.phase, "the phase of the change")
        asked = ledger.missing(number)
        self._log.until(lambda: not asked & ledger.missing(number), wait_s)
        if late := asked & ledger.missing(number):
            with ThreadPoolExecutor(min(len(late), _THREADS)) as threads:
                list(threads.map(self._remove, late))
            self._log.expect(lambda: late.isdisjoint(ledger.members), "that fenced sessions are deleted")

    def _remove(self, session: str) -> None:
        """Fence a session and delete it at once, so that a change that is interrupted does not have to begin from the first one again."""
        fence(self._settings, self._log, session)
        self._log.publish(member_key(session), None)

    def _ends(self, state: PartitionState, ranges: int) -> dict[TopicPartition, int]:
        """Return the end offsets of the logs of the current epoch, and of one with the given number of ranges."""
        topics = {log.topic for log in state.history.logs(ranges)}
        topics |= {stretch.log.topic for stretch in state.history.current.stretches}
        ends_of = self._broker.end_offsets(self._broker.partition_counts(topics))
        return {TopicPartition(topic, n): end for topic, ends in ends_of.items() for n, end in ends.items()}


def cancel(settings: ClientSettings, control: ControlLog, partition: int, number: int) -> None:
    """Cancel an unfinished change, unless a later change has replaced it.

    Raises:
        FanOutError: If another coordinator has taken over in the meantime.
    """
    producer = take_over(connection(settings), control)
    control.barrier()
    state = control.ledger.state(partition)
    if state.pending == HOLDING and state.change == number:
        write(producer, control, state.cancelled())


def take_over(settings: ClientSettings, control: ControlLog) -> Producer:
    """Become the coordinator and fence the previous one."""
    return fence(settings, control, f"{control.name}-coordinator")


def write(producer: Producer, control: ControlLog, state: PartitionState) -> None:
    """Write the state of a partition as the coordinator.

    Raises:
        FanOutError: If another coordinator has taken over.
    """
    key, value = state.entry()
    try:
        producer.begin_transaction()
        producer.produce(control.name, encoded(value), key, 0)
        producer.commit_transaction(control.patience_s)
    except KafkaException as error:
        raise FanOutError(
            f"the change of partition {state.history.primary} was cancelled: another coordinator has taken over, or a producer was "
            f"blocked for too long and cancelled it ({error.args[0].str()}). The old epoch remains valid, "
            "unless `millstream fanout status` shows another one; try again"
        ) from None


def fence(settings: ClientSettings, control: ControlLog, transactional_id: str) -> Producer:
    """Fence the owner of a transactional id and end its open transaction. Return the new producer with this id."""
    more = {"transactional.id": transactional_id, "transaction.timeout.ms": _TIMEOUT_MS}
    quick = {**QUICK_CONNECTION, "linger.ms": 0, "retry.backoff.ms": 10}
    deadline = monotonic() + control.patience_s
    while True:
        producer = create_client(Producer, {**settings, **more, **quick})
        connect(producer, control.name)
        try:
            producer.init_transactions(max(0.1, deadline - monotonic()))
            return producer
        except KafkaException as error:
            if monotonic() > deadline:
                raise BrokerUnavailableError(
                    f"the transactional id {transactional_id!r} could not be taken over within {control.patience_s:.0f} s: "
                    f"{error.args[0].str()}. Check that the broker runs and that this user may write with this id"
                ) from error
            sleep(_RETRY_S)
