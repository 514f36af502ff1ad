"""Results of users' functions: pairs of key and value, and truth values. Callers recognise the usual results by their type first."""

from __future__ import annotations

from collections.abc import Mapping
from types import CoroutineType
from typing import Any, Final

from millstream.core.model.answers import DeadLetter, Later, Skip, TryAgain
from millstream.core.model.errors import ProcessingError

_ANSWER_ADVICE: Final = (
    "an answer of asynchronous operators; filter the records, or raise an exception and set on_process_error"
)
_UNUSABLE: Final[Mapping[type, str]] = {
    CoroutineType: "a coroutine, which this operator would not await; make external calls with map_values_async, foreach_async or process_async",
    Skip: f"ms.skip(), {_ANSWER_ADVICE}",
    DeadLetter: f"ms.dead_letter(...), {_ANSWER_ADVICE}",
    TryAgain: f"ms.retry(), {_ANSWER_ADVICE}",
    Later: f"ms.delay(...), {_ANSWER_ADVICE}",
}


def pair_of(result: Any, operation: str, names: str = "key, value") -> Any:
    """Return the result of a function if it is a pair, also one of another class than ``tuple``, which callers check first.

    Text of two characters is no pair, although Python would unpack it.

    Args:
        operation: The method of the DSL that received the function.
        names: What a pair consists of, for the message.

    Raises:
        ProcessingError: If it is not a tuple or a list of two.
    """
    if isinstance(result, (tuple, list)) and len(result) == 2:
        return result
    raise ProcessingError(f"the function of {operation!r} returned {result!r:.100}; return a pair ({names})")


def truth_of(result: Any) -> bool:
    """Return whether the result of a predicate is true; callers check for True and False first.

    Raises:
        ProcessingError: If it is a coroutine or an answer of asynchronous operators, which are always true.
    """
    check_done(result)
    return bool(result)


def check_done(result: Any) -> None:
    """Refuse the result of a function that requests something that a plain operator does not do.

    Raises:
        ProcessingError: If it is a coroutine or an answer of asynchronous operators.
    """
    problem = _problem(result)
    if problem is not None:
        raise ProcessingError(f"the function returned {problem}")


def reason(error: Exception, *results: Any) -> Exception:
    """Return the reason why a key or a value cannot be serialised, if a function should not have returned it; else the error itself.

    Mappers are not checked for each record: a new value may be any object.
    """
    problem = next(filter(None, map(_problem, results)), None)
    return error if problem is None else ProcessingError(f"a function upstream returned {problem}")


def _problem(result: Any) -> str | None:
    if isinstance(result, CoroutineType):
        result.close()  # otherwise Python warns that it was never awaited
    return _UNUSABLE.get(type(result))
