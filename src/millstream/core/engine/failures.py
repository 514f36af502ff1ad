"""Failures: the error message of a failed record, its error context for the handler, and its dead letter."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, Literal, NamedTuple

from millstream.core.engine.policy import (
    MOST_ATTEMPTS,
    Decision,
    ErrorContext,
    ErrorHandler,
    Fate,
    Retrying,
    Stage,
    is_fate,
)
from millstream.core.model.answers import DeadLetter
from millstream.core.model.errors import (
    DeserializationError,
    MillstreamError,
    ProcessingError,
    ProductionError,
)
from millstream.core.model.ids import TaskId, TopicPartition
from millstream.core.model.record import Change, Headers, Record

RawRecord = tuple[TopicPartition | None, int, bytes | None, bytes | None, int, Headers]
"""Partition, offset, key and value as bytes, timestamp and headers of a record. The partition is None for a punctuator."""

ERRORS: Final[Mapping[Stage, type[MillstreamError]]] = {
    "deserialize": DeserializationError,
    "process": ProcessingError,
    "produce": ProductionError,
}
_ADVICE: Final[Mapping[Stage, str]] = {
    "deserialize": "Set the serdes of the topic's producers on the source",
    "process": "Correct the function",
    "produce": "Set serdes that fit the records on the sink",
}
_MAX_TEXT: Final = 10_000
"""Limit of an exception's text and of its traceback in the headers of a dead letter, in bytes. Each is written twice."""
_LIBRARIES: Final = (str(Path(traceback.__file__).parent), str(Path(__file__).parents[2]), "<frozen ")
"""Prefixes of the files of the standard library and of this package."""


class Attempt(NamedTuple):
    """A call of a node. It is ``repeatable`` if it may be called again after a failure, because it has no lasting effects."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    repeatable: bool = True


class Failure(NamedTuple):
    """A record that failed.

    Attributes:
        target: The topic to which a sink was sending; None at other stages.
        side: The part of the record that did not fit the serde of a sink; None for other failures.
        advice: What to correct, if it is not what the stage usually fails for.
    """

    stage: Stage
    node: str
    error: Exception
    record: RawRecord
    target: str | None = None
    side: Literal["key", "value"] | None = None
    advice: str | None = None

    def message(self, task: TaskId, outcome: str = "") -> str:
        """Return the error text.

        Args:
            outcome: The outcome of the error handler, or what happened to the record, as a sentence; empty if the application stops
                without an error handler.
        """
        advice = outcome or (
            f"{self._correction()}, or set on_{self.stage}_error='skip' to drop such records, or 'dead_letter' to send them "
            "to a separate topic"
        )
        return (
            f"{self.node} failed in stage '{self.stage}' of task {task} {where(self.record)}: {self._target_clause()}{cause(self.error)}. "
            f"{advice}"
        )

    def context(self, task: TaskId, attempt: int, arguments: tuple[Any, ...] | None) -> ErrorContext:
        """Return the argument of the error handler.

        Args:
            attempt: The number of the node's attempt at the record, from 1.
            arguments: The arguments of the node's call; None if the node was not called.
        """
        partition, offset, key, value, timestamp, headers = self.record
        topic, number = (None, -1) if partition is None else partition
        record = None if arguments is None else _record(*arguments)
        origin = (topic, number, offset, key, value, timestamp, headers)
        return ErrorContext(
            self.stage, self.node, str(task), *origin, record, attempt, self.target, self.side
        )

    def _correction(self) -> str:
        if isinstance(self.error, ProductionError):
            return "Reduce its size"
        if (
            self.stage == "produce" and self.side is None
        ):  # the serdes of the sink are not yet, or no longer, called
            part = "function that chooses the topic" if self.target is None else "partitioner"
            return f"Correct the {part}"
        return self.advice or _ADVICE[self.stage]

    def _target_clause(self) -> str:
        if self.target is None:
            return ""
        what = "sending" if self.side is None else f"the {self.side} does not fit its serde, sending"
        return f"{what} to topic {self.target!r}: "


def _record(key: Any, value: Any, *rest: Any) -> Record[Any, Any]:
    """Return the arguments of a node's call as a record. For a table, the value is a ``Change``."""
    if len(rest) == 3:
        old, timestamp, headers = rest
        return Record(key, Change(value, old), max(timestamp, 0), headers)
    timestamp, headers = rest
    return Record(key, value, max(timestamp, 0), headers)


def decide(
    handler: ErrorHandler, context: ErrorContext, error: Exception, *, again: bool, topic: str | None
) -> tuple[Decision, str]:
    """Call an error handler and check its decision.

    Returns:
        The decision, and the outcome of the handler as a sentence. The decision is "fail" if the handler raises or requests something
        impossible.
    """
    name = getattr(handler, "__qualname__", None) or type(handler).__name__
    subject = f"Its error handler {name!r}"
    try:
        answer: object = handler(context, error)
    except Exception as own:
        return "fail", f"{subject} itself failed: {type(own).__name__}: {own}{raised_in(own)}"
    if answer == "retry" and not again and isinstance(handler, Retrying):
        answer = handler.then
    if answer == "retry":
        if not again:
            return (
                "fail",
                f"{subject} requested another attempt, but a {context.stage} error of {context.node!r} is never retried here, because part of the work may be done",
            )
        if context.attempt >= MOST_ATTEMPTS:
            return "fail", f"{subject} requested more than {MOST_ATTEMPTS} attempts"
        return "retry", ""
    if not is_fate(answer):
        return "fail", f"{subject} returned {answer!r}, which is not a valid decision"
    if answer == "dead_letter" and topic is None:
        return (
            "fail",
            f"{subject} requested a dead letter, but no topic is set with dead_letter_topic='...'",
        )
    return answer, f"{subject} decided: {_shown_fate(answer)}"  # type: ignore[return-value, arg-type]


def outcome_of(fate: Fate, topic: str | None) -> str:
    """Return what happened to a failed record, as a sentence; empty if the application stops."""
    if fate == "fail":
        return ""
    return (
        "The record was skipped"
        if fate == "skip"
        else f"The record was sent to the dead-letter topic {topic!r}"
    )


def _shown_fate(fate: Fate) -> str:
    return f"dead letter to {fate.text!r}" if isinstance(fate, DeadLetter) else fate.replace("_", " ")


class Letter(NamedTuple):
    """A record for a dead-letter topic.

    Attributes:
        facts: Further facts for the headers; ``error`` is the cause.
        kind: The class of the exception, with its module; empty if none was raised.
        trace: The traceback of the exception.
    """

    stage: str
    node: str
    record: RawRecord
    facts: Mapping[str, object]
    kind: str
    trace: str

    def row(self) -> tuple[bytes | None, bytes | None, int, Headers]:
        """Return key, value, timestamp and headers. Headers of Millstream and of Kafka Streams (KIP-1034) follow the record's own."""
        partition, offset, key, value, timestamp, headers = self.record
        topic, number = ("", -1) if partition is None else partition
        error, trace = _cut(str(self.facts["error"])), _cut(self.trace, end=True)
        ours = {
            "stage": self.stage,
            "node": self.node,
            "topic": topic,
            "partition": number,
            "offset": offset,
            "record": "operator" if self.stage == "call" else "read",
            **self.facts,
            "error": error,
            "traceback": trace,
        }
        streams_facts = {
            "exception": self.kind,
            "message": error.removeprefix(f"{self.kind.rpartition('.')[2]}: "),
            "stacktrace": trace,
            "topic": topic,
            "partition": number,
            "offset": offset,
        }
        added = {f"millstream.error.{name}": fact for name, fact in ours.items()}
        added |= {f"__streams.errors.{name}": fact for name, fact in streams_facts.items()}
        own = ((name, str(fact).encode(errors="replace")) for name, fact in added.items())
        return key, value, max(timestamp, 0), (*headers, *own)

    def no_topic(self, task_id: TaskId) -> str:
        """Return the error text for the case that there is no dead-letter topic."""
        if self.stage != "call":
            return "a dead-letter policy needs the setting dead_letter_topic='...'"
        return (
            f"the call of {self.node} in task {task_id} {where(self.record)} returned ms.dead_letter(...), but there is no topic for "
            "it: set one for the operator with on_failure=ms.dead_letter('topic'), or for the application with the setting "
            "dead_letter_topic"
        )


def _cut(text: str, *, end: bool = False) -> str:
    """Return the beginning, or the end, of a text that is too long for a header.

    An exception may quote its whole record, and a dead letter that is much larger than the record may be too large for the topic.
    """
    data = text.encode(errors="replace")
    return (data[-_MAX_TEXT:] if end else data[:_MAX_TEXT]).decode(errors="ignore")


def where(record: RawRecord) -> str:
    partition, offset, key, value, *_ = record
    if partition is None:
        return "in a punctuator"
    return (
        f"at topic {partition.topic!r}, partition {partition.partition}, offset {offset} "
        f"(key {_bytes_excerpt(key)}, value {_bytes_excerpt(value)})"
    )


def cause(error: Exception) -> str:
    if isinstance(error, MillstreamError):
        return str(error)
    return f"{type(error).__name__}: {error}{raised_in(error)}"


def raised_in(error: BaseException) -> str:
    """Return where an error was raised, as text.

    This is the innermost frame of user code. Without one, it is the user's function that the innermost frame has called or would have
    called, for example if its result cannot be used; and if there is no such function, the innermost frame.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return ""
    for frame, line in reversed(frames):
        if _is_user_code(frame.f_code.co_filename):
            return f" ({frame.f_code.co_filename}, line {line}, in {frame.f_code.co_name})"
    innermost, line = frames[-1]
    called = _user_function(innermost)
    if called is not None:
        return f" ({called.co_filename}, line {called.co_firstlineno}, in the call of {called.co_name})"
    return f" ({innermost.f_code.co_filename}, line {line}, in {innermost.f_code.co_name})"


def _user_function(frame: FrameType) -> CodeType | None:
    """Return the code of the first function of the user among the variables of a frame."""
    codes = (getattr(each, "__code__", None) for each in frame.f_locals.values())
    return next(
        (code for code in codes if isinstance(code, CodeType) and _is_user_code(code.co_filename)), None
    )


def _is_user_code(file: str) -> bool:
    return not (file.startswith(_LIBRARIES) or "site-packages" in file or "dist-packages" in file)


def _bytes_excerpt(data: bytes | None) -> str:
    if data is None:
        return "null"
    return repr(data) if len(data) <= 40 else f"{data[:40]!r}... of {len(data)} bytes"
