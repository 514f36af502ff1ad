"""Error policies: what happens to a record that fails, per stage and per operator.

* ``fail`` (default): the application stops with an error that names the record. If there is a dead-letter topic, the record
  goes there first.
* ``skip``: the record is dropped, counted and logged.
* ``dead_letter``: the original record goes to the dead-letter topic, with headers that say where and why it failed;
  ``ms.dead_letter("topic")`` names another topic.
* an *error handler*: a function of the user that decides record by record, and may also let the operator try once more.

Source: Kafka Streams' deserialization, processing and production exception handlers (KIP-161, KIP-210, KIP-399, KIP-1033);
KIP-1034 (dead-letter queue).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import iscoroutinefunction
from typing import Any, Final, Literal, TypeAlias, get_args

from millstream.core.model.answers import DeadLetter
from millstream.core.model.errors import SettingsError
from millstream.core.model.record import Headers, Record
from millstream.core.topology.plan import Plan

Word = Literal["fail", "skip", "dead_letter"]
Stage = Literal["deserialize", "process", "produce"]
Fate: TypeAlias = Word | DeadLetter
"""What becomes of a record that has failed for good."""
Decision: TypeAlias = Fate | Literal["retry"]
"""What an error handler returns."""

WORDS: Final[tuple[str, ...]] = get_args(Word)
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)
MOST_ATTEMPTS: Final = 10
"""How often an operator tries one record, whatever its handler says."""


@dataclass(frozen=True)
class ErrorContext:
    """A record that failed, as an error handler sees it (Kafka Streams: ``ErrorHandlerContext``).

    Attributes:
        stage: ``"deserialize"``, ``"process"`` or ``"produce"``.
        node: The node that failed: a source, an operator, a processor or a sink.
        task: The task, such as ``"0_3"``.
        topic: Where the record was read; None in a punctuator.
        partition: Its partition, -1 in a punctuator.
        offset: Its offset, -1 in a punctuator.
        key: The key as bytes, as it was read.
        value: The value as bytes, as it was read.
        timestamp: Of the record that was read, ms since the epoch.
        headers: Of the record that was read.
        record: The record as it came to the node; the value of a table's row is a ``Change``. None where no record came to it:
            in a source, a punctuator, or a method that gets the result of a call.
        attempt: How often the node has tried it, from 1.
        target: The topic that a sink was sending to; None elsewhere, or if the choice of the topic failed.
        side: ``"key"`` or ``"value"``, whichever did not fit the serde of a sink; None elsewhere.
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
"""Decides what becomes of a record that failed: ``"fail"``, ``"skip"``, ``"dead_letter"``, ``ms.dead_letter("topic")`` or
``"retry"``."""
Policy: TypeAlias = Fate | ErrorHandler


@dataclass(frozen=True)
class Retrying:
    """An error handler that retries a record immediately, and decides what happens if all attempts fail.

    If a retry is not possible, such as in a stateful operator or a punctuator, ``then`` applies at once.

    Attributes:
        attempts: How often a record is tried in all, 2 to 10.
        then: What becomes of a record that still fails: ``"fail"``, ``"skip"``, ``"dead_letter"`` or ``ms.dead_letter("topic")``.
        on: The exceptions after which the record is retried; ``then`` applies to others.

    Raises:
        SettingsError: If an attribute is none of these.

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
        """Decide for a record that failed."""
        return "retry" if isinstance(error, self.on) and context.attempt < self.attempts else self.then


@dataclass(frozen=True)
class ErrorPolicies:
    """The policy of each stage, and of operators that have one of their own.

    A policy is ``"fail"``, ``"skip"``, ``"dead_letter"``, ``ms.dead_letter("topic")``, or an error handler: a function of an
    :class:`ErrorContext` and the exception that returns one of these, or ``"retry"``. Handlers run where the operators run and cross
    to executors as cloudpickle. One that raises, or returns something else, counts as ``"fail"``, with both errors named.

    Attributes:
        deserialize: For records whose bytes do not fit the serdes, or without a valid timestamp.
        process: For records on which a function or processor raises.
        produce: For results that do not fit the serdes of a sink.
        dead_letter_topic: Where failed records go, under ``"fail"``, too.
        operators: Policies by the name of a node, which go before those of the stages.

    Raises:
        SettingsError: If a policy is none of these.

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
        """Return the policy of a node in a stage."""
        own = self.operators.get(node)
        if own is not None:
            return own
        policy: Policy = getattr(self, stage)
        return policy

    def asks(self, node: str) -> bool:
        """Return whether an error handler may decide for records that fail in a node."""
        return any(callable(self.of(stage, node)) for stage in STAGES)

    @property
    def topics(self) -> frozenset[str]:
        """The dead-letter topics that are known by name."""
        named = {policy.text for policy in self._all() if isinstance(policy, DeadLetter)}
        return frozenset(named if self.dead_letter_topic is None else {*named, self.dead_letter_topic})

    def without_dead_letters(self) -> ErrorPolicies:
        """Return the same policies with "skip" in place of dead letters."""
        stages = {stage: _skipping(self.of(stage)) for stage in STAGES}
        operators = {node: _skipping(policy) for node, policy in self.operators.items()}
        return replace(self, **stages, dead_letter_topic=None, operators=operators)

    def check_nodes(self, plan: Plan) -> None:
        """Refuse policies of nodes that do not exist.

        Args:
            plan: The topology.

        Raises:
            SettingsError: If there is no such node.
        """
        known = {name for part in (*plan.subtopologies, *plan.global_parts) for name in part.nodes}
        for node in self.operators:
            if node not in known:
                names = ", ".join(sorted(known))
                raise SettingsError(
                    f"an error policy names node {node!r}, which the topology does not have; give the operator this name with name=... "
                    f"The nodes are: {names}"
                )

    def _all(self) -> list[Policy]:
        given = [*(self.of(stage) for stage in STAGES), *self.operators.values()]
        return [policy.then if isinstance(policy, Retrying) else policy for policy in given]


def is_fate(answer: object) -> bool:
    return isinstance(answer, DeadLetter) or (isinstance(answer, str) and answer in WORDS)


def check_policy(parameter: str, policy: object) -> None:
    """Refuse what is no policy.

    Args:
        parameter: The parameter's name, for the error.

    Raises:
        SettingsError: If it is no policy.
    """
    if iscoroutinefunction(policy):
        raise SettingsError(
            f"{parameter}: an error handler must be a plain function, but {policy!r} is a coroutine function"
        )
    if isinstance(policy, type) or not (is_fate(policy) or callable(policy)):
        words = ", ".join(map(repr, WORDS))
        raise SettingsError(
            f"{parameter}={policy!r} is not an error policy; use one of {words}, ms.dead_letter('topic'), or a function of an "
            "ErrorContext and the exception that returns one of them or 'retry'"
        )


@dataclass(frozen=True)
class _Skipping:
    """An error handler whose dead letters are skipped."""

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
