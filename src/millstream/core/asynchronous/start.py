"""Start: one execution of a user's function, for a call or a batch of calls."""

from __future__ import annotations

from typing import Any, NamedTuple

from millstream.core.asynchronous.call import Call, Raised, in_words
from millstream.core.model.errors import ProcessingError


class Start(NamedTuple):
    """Calls that begin together.

    Attributes:
        calls: One call, or those of a batch.
        deadline_ms: When it times out, ms since the epoch; None for never.
        batch: Whether the function takes lists.
    """

    number: int
    calls: tuple[Call, ...]
    deadline_ms: int | None
    batch: bool

    def run(self) -> Any:
        """Call the function; its result may be an awaitable."""
        if not self.batch:
            return self.calls[0].function(*self.calls[0].args)
        return self.calls[0].function(*(list(column) for column in zip(*(call.args for call in self.calls))))

    def answers(self, result: Any) -> list[Any]:
        """Return the answer to each call from the function's result.

        A batch's function gives a list with a result per record; an exception in it is what that record raised.
        """
        if not self.batch:
            return [result]
        if not isinstance(result, (list, tuple)) or len(result) != len(self.calls):
            wrong = ProcessingError(
                f"the function of a batch of {len(self.calls)} records returned {_in_short(result)}; it must return a list with "
                "one result per record"
            )
            return self.raised(wrong)
        return [Raised(answer) if isinstance(answer, Exception) else answer for answer in result]

    def raised(self, error: BaseException) -> list[Any]:
        """Return the answer to each call from the function's exception.

        What would end a thread or cancel a task (``CancelledError``, ``SystemExit``) is a failed attempt like any other.
        """
        if not isinstance(error, Exception):
            error = ProcessingError(f"the call ended with {in_words(error)}")
        return [Raised(error)] * len(self.calls)


def _in_short(result: Any) -> str:
    many = f" of {len(result)}" if isinstance(result, (list, tuple)) else ""
    return f"a {type(result).__name__}{many}"
