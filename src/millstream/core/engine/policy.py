"""Error policies: decide what happens to a record that fails, per stage and per operator.

* ``fail`` (default): the application stops with an error that identifies the record. If there is a dead-letter topic, the record is sent
  there first.
* ``skip``: the record is dropped, counted and logged.
* ``dead_letter``: the original record is sent to the dead-letter topic, with the location and the cause of the failure in headers.
  ``ms.dead_letter("topic")`` chooses another topic.
* an *error handler*: a user's function that decides per record, and may also request a retry.

Source: Kafka Streams' deserialization, processing and production exception handlers (KIP-161, KIP-210, KIP-399, KIP-1033);
KIP-1034 (dead-letter queue).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from millstream.core.model.answers import DeadLetter
from millstream.core.model.arguments import arguments_problem, is_coroutine
from millstream.core.model.errors import SettingsError
from millstream.core.model.record import Headers, Record
from millstream.core.topology.plan import Plan

Word = Literal["fail", "skip", "dead_letter"]
Stage = Literal["deserialize", "process", "produce"]
Fate: TypeAlias = Word | DeadLetter
"""What happens to a failed record that is not retried."""
Decision: TypeAlias = Fate | Literal["retry"]
"""The return value of an error handler."""

WORDS: Final[tuple[str, ...]] = get_args(Word)
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)
MOST_ATTEMPTS: Final = 10
"""Maximum number of attempts per record, regardless of the error handler."""


@dataclass(frozen=True)
class ErrorContext:
    """The failed record and its location, for an error handler.

    Attributes:
        stage: ``"deserialize"``, ``"process"`` or ``"produce"``.
        node: The node that failed: a source, an operator, a processor or a sink.
        task: The task, such as ``"0_3"``.
        topic: The topic from which the record was read; None in a punctuator.
        partition: The partition from which the record was read; -1 in a punctuator.
        offset: The offset of the record; -1 in a punctuator.
        key: The key as read, in bytes.
        value: The value as read, in bytes.
        timestamp: The timestamp of the record as read, ms since the epoch.
        headers: The headers of the record as read.
        record: The record that the node received; the value of a table's row is a ``Change``. None if the node received no record: in a
            source, a punctuator, or a method that receives the result of a call.
        attempt: The number of the node's attempt at the record, from 1.
        target: The topic to which a sink was sending; None elsewhere, or if the choice of the topic failed.
        side: ``"key"`` or ``"value"`` if that part of the record did not fit the serde of a sink; None elsewhere.

    Source: ``org.apache.kafka.streams.errors.ErrorHandlerContext`` (KIP-1033). For an example, see :class:`ErrorPolicies`.
    """

    stage: Stage
    node: str
    task: str
    topic: str | None
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers
    record: Record[Any, Any] | None = None
    attempt: int = 1
    target: str | None = None
    side: Literal["key", "value"] | None = None


ErrorHandler: TypeAlias = Callable[[ErrorContext, Exception], Decision]
"""Decides what happens to a failed record: ``"fail"``, ``"skip"``, ``"dead_letter"``, ``ms.dead_letter("topic")`` or ``"retry"``."""
Policy: TypeAlias = Fate | ErrorHandler


@dataclass(frozen=True)
class Retrying:
    """An error handler that retries a record immediately, and applies a policy if all attempts fail.

    If a retry is not possible, for example in a stateful operator or a punctuator, ``then`` applies at once.

    Attributes:
        attempts: Total number of attempts, 2 to 10.
        then: Policy if the last attempt fails: ``"fail"``, ``"skip"``, ``"dead_letter"`` or ``ms.dead_letter("topic")``.
        on: The exceptions after which the record is retried; ``then`` applies to other exceptions.

    Raises:
        SettingsError: If an attribute has another value.

    Source: Kafka Streams has no counterpart; its exception handlers (KIP-1033) decide once.

    Example:
        >>> import millstream as ms
        >>> tries = iter([OSError("busy"), OSError("busy"), "done"])
        >>> def work(value: str) -> str:
        ...     answer = next(tries)
        ...     if isinstance(answer, Exception):
        ...         raise answer
        ...     return answer
        >>> builder = ms.StreamsBuilder()
        >>> builder.stream("in").map_values(work).to("out")
        >>> policies = ms.ErrorPolicies(process=ms.Retrying(3, then="skip", on=OSError))
        >>> with ms.testing.TopologyTestDriver(builder.build(), policies=policies) as driver:
        ...     driver.pipe("in", "k", "v")
        ...     driver.read("out")[0].value
        'done'
    """

    attempts: int
    then: Fate = "fail"
    on: type[Exception] | tuple[type[Exception], ...] = Exception

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 2 <= self.attempts <= MOST_ATTEMPTS:
            raise SettingsError(
                f"Retrying: attempts={self.attempts!r} must be a whole number from 2 to {MOST_ATTEMPTS}"
            )
        if not is_fate(self.then):
            raise SettingsError(
                f"Retrying: then={self.then!r} must be one of {', '.join(map(repr, WORDS))}, ms.dead_letter('topic')"
            )
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        if not kinds or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise SettingsError(
                f"Retrying: on={self.on!r} must be an exception class, or a tuple of exception classes"
            )

    def __call__(self, context: ErrorContext, error: Exception) -> Decision:
        return "retry" if isinstance(error, self.on) and context.attempt < self.attempts else self.then


@dataclass(frozen=True)
class ErrorPolicies:
    """The error policies of the stages and of single operators.

    A policy is ``"fail"``, ``"skip"``, ``"dead_letter"``, ``ms.dead_letter("topic")``, or an error handler: a function of an
    :class:`ErrorContext` and the exception that returns one of these values or ``"retry"``. Handlers are sent to the executors with
    cloudpickle and run there, with the operators. If a handler raises or returns another value, the policy is ``"fail"``, and the error
    message contains both errors.

    Attributes:
        deserialize: For records whose bytes do not fit the serdes, and records without a valid timestamp.
        process: For records for which a function or processor raises.
        produce: For records that a sink cannot send: they do not fit its serdes, are too large, or the choice of topic or partition fails.
        dead_letter_topic: The topic for failed records, also under ``"fail"``.
        operators: Policies by the name of a node. They take precedence over the policies of the stages.

    Raises:
        SettingsError: If a policy has another value.

    Source: Kafka Streams' exception handlers (KIP-161, KIP-210, KIP-1033); KIP-1034 for dead letters.

    Example:
        >>> import millstream as ms
        >>> def patient(context: ms.ErrorContext, error: Exception) -> str:
        ...     return "retry" if isinstance(error, OSError) and context.attempt < 3 else "fail"
        >>> policies = ms.ErrorPolicies(process=patient, operators={"parse": "skip"})
        >>> policies.of("process", "parse"), policies.of("produce", "sink")
        ('skip', 'fail')
    """

    deserialize: Policy = "fail"
    process: Policy = "fail"
    produce: Policy = "fail"
    dead_letter_topic: str | None = None
    operators: Mapping[str, Policy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for stage in STAGES:
            check_policy(stage, getattr(self, stage))
        if not isinstance(self.operators, Mapping):
            raise SettingsError(
                f"operators must be a dict from names of nodes to policies, not {self.operators!r}"
            )
        for node, policy in self.operators.items():
            check_policy(f"operators[{node!r}]", policy)

    def of(self, stage: Stage, node: str = "") -> Policy:
        """Return the policy of a node in a stage.

        Args:
            stage: ``"deserialize"``, ``"process"`` or ``"produce"``.
            node: Name of the node.
        """
        own = self.operators.get(node)
        if own is not None:
            return own
        policy: Policy = getattr(self, stage)
        return policy

    def asks(self, node: str) -> bool:
        """Return whether an error handler may decide about records that fail in a node.

        Args:
            node: Name of the node.
        """
        return any(callable(self.of(stage, node)) for stage in STAGES)

    @property
    def topics(self) -> frozenset[str]:
        """The dead-letter topics of the policies. Handlers may choose others."""
        policies = map(_last_resort, (*(self.of(stage) for stage in STAGES), *self.operators.values()))
        named = {policy.text for policy in policies if isinstance(policy, DeadLetter)}
        return frozenset(named if self.dead_letter_topic is None else {*named, self.dead_letter_topic})

    def without_dead_letters(self) -> ErrorPolicies:
        """Return these policies with "skip" in place of dead letters."""
        stages = {stage: _skipping(self.of(stage)) for stage in STAGES}
        operators = {node: _skipping(policy) for node, policy in self.operators.items()}
        return replace(self, **stages, dead_letter_topic=None, operators=operators)

    def check_nodes(self, plan: Plan) -> None:
        """Check that the nodes in ``operators`` exist.

        Args:
            plan: The topology.

        Raises:
            SettingsError: If a node does not exist.
        """
        known = {name for part in (*plan.subtopologies, *plan.global_parts) for name in part.nodes}
        for node in self.operators:
            if node not in known:
                names = ", ".join(sorted(known))
                raise SettingsError(
                    f"an error policy names node {node!r}, which the topology does not have; give the operator this name with name=... "
                    f"The nodes are: {names}"
                )


def _last_resort(policy: Policy) -> Policy:
    return policy.then if isinstance(policy, Retrying) else policy


def needing_topic(policies: Mapping[str, Policy]) -> str | None:
    """Return the name and value of the first policy that sends dead letters to the application's dead-letter topic; None without one."""
    found = (
        f"{name}={policy!r}" for name, policy in policies.items() if _last_resort(policy) == "dead_letter"
    )
    return next(found, None)


def is_fate(answer: object) -> bool:
    return isinstance(answer, DeadLetter) or (isinstance(answer, str) and answer in WORDS)


def check_policy(parameter: str, policy: object) -> None:
    if is_coroutine(policy):
        raise SettingsError(
            f"{parameter}: an error handler must be a plain function, but {policy!r} is a coroutine function"
        )
    if isinstance(policy, type) or not (is_fate(policy) or callable(policy)):
        words = ", ".join(map(repr, WORDS))
        raise SettingsError(
            f"{parameter}={policy!r} is not an error policy; use one of {words}, ms.dead_letter('topic'), or a function of an "
            "ErrorContext and the exception that returns one of them or 'retry'"
        )
    if callable(policy) and (problem := arguments_problem(policy, ("context", "error"))) is not None:
        raise SettingsError(f"{parameter}: {problem}")


@dataclass(frozen=True)
class _Skipping:
    """Wraps an error handler to skip records instead of sending dead letters."""

    handler: ErrorHandler

    def __call__(self, context: ErrorContext, error: Exception) -> Decision:
        decision = self.handler(context, error)
        return "skip" if decision == "dead_letter" or isinstance(decision, DeadLetter) else decision


def _skipping(policy: Policy) -> Policy:
    if isinstance(policy, DeadLetter) or policy == "dead_letter":
        return "skip"
    if isinstance(policy, Retrying):
        return replace(policy, then="fail" if policy.then == "fail" else "skip")
    return _Skipping(policy) if callable(policy) else policy
