"""Questions: the store and method to query, and how the answers of several tasks are combined.

Several tasks keep a store, each with part of the keys. The task with the key answers a question about one key; all tasks answer any other
question, and their entries are merged into one order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import Any, Final

from millstream.core.model.errors import StoreError
from millstream.core.model.record import ValueAndTimestamp
from millstream.core.queries.methods import METHODS
from millstream.core.topology.stores import SessionSpec, StoreSpec, WindowSpec

MOST_ENTRIES: Final = 10_000
"""Maximum number of entries of an answer without a limit. More entries are an error."""


@dataclass  # creating a frozen question and a frozen answer would take a seventh of the time of a get
class Question:
    """A question about a store.

    Attributes:
        limit: Maximum number of entries. With None, more than :data:`MOST_ENTRIES` are an error.
        timestamps: Whether values of a timestamped store are returned with their timestamps.
        max_lag: Maximum number of unprocessed records in the topics of the store; None for any number.
        text: Whether arguments are text, and the answer must be plain data; see ``millstream.core.queries.text_questions``.
    """

    store: str
    method: str
    arguments: tuple[Any, ...] = ()
    limit: int | None = None
    timestamps: bool = False
    max_lag: int | None = None
    text: bool = False


@dataclass
class Answer:
    """An answer, and the state that it reflects.

    Attributes:
        offsets: By topic and partition, the offset before which the answer includes all records.

    Source: ``org.apache.kafka.streams.query.StateQueryResult`` and its ``Position`` (KIP-796).
    """

    value: Any
    batch: int
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    lag: int = 0


def answer_of(question: Question, spec: StoreSpec, stores: Iterable[Any]) -> Any:
    """Combine the answers of the tasks that have a store. The question has been checked.

    Args:
        stores: The store of each task; for a question about one key, one store.

    Raises:
        StoreError: If the store cannot answer the question, or the answer has too many entries.
    """
    scope = METHODS[type(spec)][question.method].scope
    if scope == "info":
        return _described(spec, stores)
    if scope == "key":
        (store,) = stores
        return found_in(store, question)
    results = (getattr(store, question.method)(*question.arguments) for store in stores)
    if scope == "sum":
        return sum(results)
    order = order_of(spec)
    return _materialized_result(question, merge(*results, key=order, reverse=scope == "backwards"))


def found_in(store: Any, question: Question) -> Any:
    """Return what one task has for a question about one key; None or an empty list if it does not have the key."""
    return _materialized_result(question, getattr(store, question.method)(*question.arguments))


def _described(spec: StoreSpec, stores: Iterable[Any]) -> dict[str, Any]:
    facts = {
        "kind": spec.kind,
        "key": spec.key.name,
        "value": spec.value.name,
        "timestamps": spec.timestamped,
    }
    if "approximate_count" in METHODS[type(spec)]:
        facts["approximate_count"] = sum(store.approximate_count() for store in stores)
    return facts


def _materialized_result(question: Question, result: Any) -> Any:
    """Return the result of a method as users see it, with its entries as a list."""
    if isinstance(result, ValueAndTimestamp):
        return result if question.timestamps else result.value
    if result is None or not isinstance(result, Iterator):
        return result
    most = MOST_ENTRIES if question.limit is None else question.limit
    entries = [(key, _without_timestamp(question, value)) for key, value in islice(result, most)]
    if question.limit is None and next(result, None) is not None:
        raise StoreError(
            f"{question.method}() of store {question.store!r} has more than {most:,} entries; set a limit, or query fewer keys"
        )
    return entries


def _without_timestamp(question: Question, value: Any) -> Any:
    return value.value if isinstance(value, ValueAndTimestamp) and not question.timestamps else value


def order_of(spec: StoreSpec) -> Callable[[tuple[Any, Any]], Any]:
    """Return a function that computes an entry's sort key, in the order that each task uses."""
    key_bytes = spec.key.serialize
    if not isinstance(spec, WindowSpec | SessionSpec):
        return lambda entry: key_bytes(entry[0])
    time = 1 if isinstance(spec, WindowSpec) else 2
    if spec.by_time:
        return lambda entry: (entry[0][time], key_bytes(entry[0].key), entry[0].start)
    return lambda entry: (key_bytes(entry[0].key), entry[0][time], entry[0].start)
