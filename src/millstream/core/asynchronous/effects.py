"""Effects: the writes and forwards of a function that runs in the async worker.

The function of ``process_async`` runs in another process than the task and its stores. The call contains the state of the record's key.
Writes and forwards are recorded in *one* list, in program order, and the task applies the whole list in one step when the record
retires. A read returns the call's own writes, or else the state at the time when the call was issued. At order ``key``, all earlier
records of the key have been applied by then.

If the call fails or asks for another attempt, none of its effects is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from inspect import isawaitable
from typing import Any, Generic, NamedTuple

from millstream.core.asynchronous.call import lacks_parentheses
from millstream.core.model.calls import Answer
from millstream.core.model.errors import ProcessingError
from millstream.core.model.record import Headers, K, Record, RecordMetadata, V

Effects = tuple[tuple[str, str | None, tuple[Any, ...]], ...]
"""``("put", store, (key, value))`` and ``("forward", child or None, (key, value, timestamp, headers))``, in order."""


class Started(NamedTuple):
    """The argument of a call of ``process_async``: a record, and the state of its key.

    Attributes:
        attempt: The number of the attempt, from 1.
        state: The value of the record's key in each connected store.
        origin: Topic, partition and offset of the record; None if a punctuator forwarded it.
    """

    operator: str
    key: Any
    value: Any
    timestamp: int
    headers: Headers
    attempt: int
    state: Mapping[str, Any]
    origin: RecordMetadata | None = None


class CallContext:
    """The context of the function of ``process_async``. Each attempt has a new one.

    Source: KIP-28, the part of ``ProcessorContext`` that is available outside the task.

    Example:
        >>> context = CallContext(Started("charge", "anna", 5, 0, (), 1, {"totals": 10}))
        >>> totals = context.state_store("totals")
        >>> totals.put("anna", totals.get("anna") + 5)
        >>> totals.get("anna")
        15
    """

    def __init__(self, started: Started) -> None:
        self._started = started
        self._effects: list[tuple[str, str | None, tuple[Any, ...]]] = []
        self._stores: dict[str, CalledStore[Any, Any]] = {}

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._started.attempt

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Topic, partition and offset of the record; None if a punctuator forwarded it.

        They are the same in each attempt, so a service can detect duplicates.

        Source: ``ProcessorContext.recordMetadata``.
        """
        return self._started.origin

    @property
    def effects(self) -> Effects:
        """The effects recorded so far, in order."""
        return tuple(self._effects)

    def forward(self, record: Record[Any, Any], child: str | None = None) -> None:
        """Forward a record to all children, or to one child, when this record retires.

        Args:
            record: The record.
            child: Name of the child; None forwards to all.

        Source: ``ProcessorContext.forward``.

        Example:
            >>> context = CallContext(Started("charge", "anna", 5, 0, (), 1, {}))
            >>> context.forward(Record("anna", "paid", 0))
            >>> context.effects
            (('forward', None, ('anna', 'paid', 0, ())),)
        """
        self._effects.append(("forward", child, (record.key, record.value, record.timestamp, record.headers)))

    def state_store(self, name: str) -> CalledStore[Any, Any]:
        """Return a connected key-value store, restricted to the record's key. For an example, see :class:`CallContext`.

        Args:
            name: Name of the store.

        Returns:
            A store whose reads include the writes of this call.

        Raises:
            ProcessingError: If the store is not connected.

        Source: ``ProcessorContext.getStateStore``.
        """
        if name not in self._stores:
            state, key = self._started.state, self._started.key
            if name not in state:
                known = ", ".join(state) or "none"
                without = " (the record has no key, so it has no state)" if key is None else ""
                raise ProcessingError(
                    f"{self._started.operator!r} is not connected to a store {name!r} (connected: {known}){without}; add "
                    f"it with process_async(..., stores=[{name!r}])"
                )
            self._stores[name] = CalledStore(name, key, state[name], self._effects)
        return self._stores[name]


class CalledStore(Generic[K, V]):
    """A key-value store inside a call: the state of the record's key, and the call's own writes."""

    def __init__(
        self, name: str, key: K, value: V | None, effects: list[tuple[str, str | None, tuple[Any, ...]]]
    ) -> None:
        self._name = name
        self._key = key
        self._value = value
        self._effects = effects

    def get(self, key: K) -> V | None:
        """Return the value of the record's key, which this call may have written; None if there is none.

        Raises:
            ProcessingError: For any other key, because its value is not sent with the call.
        """
        self._check("reads", key)
        return self._value

    def put(self, key: K, value: V | None) -> None:
        """Set the value of the record's key when the record retires; None deletes it.

        Raises:
            ProcessingError: For any other key, because a call for a record of that key may change the same entry meanwhile.
        """
        self._check("writes", key)
        self._value = value
        self._effects.append(("put", self._name, (key, value)))

    def put_if_absent(self, key: K, value: V) -> V | None:
        """Set the value of the record's key if it has none; return the previous value, or None.

        Raises:
            ProcessingError: For any other key.
        """
        old = self.get(key)
        if old is None:
            self.put(key, value)
        return old

    def delete(self, key: K) -> V | None:
        """Remove the record's key when the record retires; return the previous value, or None.

        Raises:
            ProcessingError: For any other key.
        """
        old = self.get(key)
        self.put(key, None)
        return old

    def _check(self, accesses: str, key: K) -> None:
        if key != self._key:
            raise ProcessingError(
                f"store {self._name!r}: the call {accesses} the key {key!r}, but only the entry of its record's key is sent with it: "
                "change the key with select_key(...) and repartition() first, or use a processor that issues calls"
            )


class Performing:
    """Calls the function of ``process_async`` and returns its effects.

    Args:
        function: A plain or coroutine function ``(record, context) -> None``; it may also return an answer such as ``ms.skip()``.
    """

    def __init__(self, function: Callable[[Record[Any, Any], CallContext], Any]) -> None:
        self._function = self.__wrapped__ = function

    def __call__(self, started: Started) -> Any:
        context = CallContext(started)
        record = Record(started.key, started.value, started.timestamp, started.headers)
        return _finished(self._function(record, context), lambda result: _answer(result, context))


class Acting:
    """Calls the function of ``foreach_async``. Drops a result that is no answer, because nobody reads it and it may not be picklable.

    Args:
        function: A plain or coroutine function ``(key, value) -> anything``.

    Example:
        >>> print(Acting(lambda key, value: value)("a", 1))
        None
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = self.__wrapped__ = function

    def __call__(self, key: Any, value: Any) -> Any:
        return _finished(self._function(key, value), _answer_only)


class ActingOnBatch:
    """Calls the function of ``foreach_async`` for a batch. Expands a result of None to one None per record, and drops other results.

    Args:
        function: A plain or coroutine function ``(keys, values) -> None``; it may also return a list of answers and exceptions.

    Example:
        >>> ActingOnBatch(lambda keys, values: None)(["a", "b"], [1, 2])
        [None, None]
    """

    def __init__(self, function: Callable[[list[Any], list[Any]], Any]) -> None:
        self._function = self.__wrapped__ = function

    def __call__(self, keys: list[Any], values: list[Any]) -> Any:
        return _finished(self._function(keys, values), lambda result: _each(result, len(keys)))


class _Awaited:
    def __init__(self, result: Any, finish: Callable[[Any], Any]) -> None:
        self._result = result
        self._finish = finish

    def __await__(self) -> Generator[Any, Any, Any]:
        result = yield from self._result.__await__()
        return self._finish(result)


def _finished(result: Any, finish: Callable[[Any], Any]) -> Any:
    return _Awaited(result, finish) if isawaitable(result) else finish(result)


def _each(result: Any, count: int) -> Any:
    if result is None:
        return [None] * count
    if not isinstance(result, (list, tuple)):  # refused where the answers are matched with the records
        return result
    return [each if isinstance(each, Exception) else _answer_only(each) for each in result]


def _answer_only(result: Any) -> Any:
    return result if _is_answer(result) else None


def _is_answer(result: Any) -> bool:
    return isinstance(result, Answer) or lacks_parentheses(result)


def _answer(result: Any, context: CallContext) -> Any:
    if result is None:
        return context.effects
    if _is_answer(result):
        return result
    raise ProcessingError(
        f"the function of process_async returned {result!r}. The result would be lost: forward records with context.forward(...), and "
        "return None or an answer such as ms.skip()"
    )
