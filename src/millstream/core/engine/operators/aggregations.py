"""Aggregations of streams by key and of tables by a new key; and folding, which applies a known aggregation to a batch of records.

Folding reads the entries of a batch's keys and computes one result per record, without writing to the store. The caller then writes the
last result of each key. Each key is therefore read once and written once per batch.

If a value cannot be folded or an entry cannot be read, the results end before that record. The entries are written from these results,
so nothing is lost.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from millstream.core.engine.columns import Columns, Form, call_per_row, without_nulls
from millstream.core.engine.compile import Call, Compiled, columns_of, compile_node, form_downstream
from millstream.core.model.errors import MillstreamError
from millstream.core.model.record import Headers
from millstream.core.model.serdes import Serde
from millstream.core.state.values import Values
from millstream.core.topology import nodes as n
from millstream.core.topology.folds import RECIPES, Fold

INCOMPLETE: Final = "null key or value in an aggregation"


Entry = tuple[Any, int]
"""An aggregate and its timestamp."""
Fetch = Callable[[bytes], "Entry | None"]


def _unchanged(result: Any) -> Any:
    return result


@dataclass(frozen=True)
class Before:
    """The entries of a batch's keys before the batch. Keys are numbered in the order of their first records.

    Attributes:
        numbers: Per record, the number of its key.
        entries: The entries by number. If an entry could not be read, they end before it.
    """

    numbers: Sequence[int]
    entries: Sequence[Entry | None]
    keys: int

    def readable(self) -> Sequence[int]:
        """Return the key numbers of the records before the first record whose entry could not be read."""
        if len(self.entries) == self.keys:
            return self.numbers
        return self.numbers[: self.numbers.index(len(self.entries))]

    def folded(
        self,
        results: list[Any],
        aggregates: list[Any],
        timestamps: list[int],
        stored: Callable[[Any], Any] = _unchanged,
    ) -> Folded:
        """Return the results of a fold.

        Args:
            results: Per record, up to the first record that could not be folded.
            aggregates: By key number, the last result as the store returns it.
            timestamps: Of the records of the batch.
            stored: Returns a result as the store returns it.
        """
        complete = len(results) == len(timestamps)
        newest, latest = self._newest(timestamps if complete else timestamps[: len(results)])
        folded = Folded(results, newest, self.numbers, list(zip(aggregates, latest)), stored)
        return folded if complete else folded.head(len(results))

    def _newest(self, timestamps: list[int]) -> tuple[list[int], list[int]]:
        """Return the largest timestamp so far of a record's key: per record, and by key number after the last record."""
        latest = [-1 if entry is None else entry[1] for entry in self.entries]
        if timestamps and max(latest, default=-1) <= timestamps[0] and sorted(timestamps) == timestamps:
            for number, timestamp in zip(self.numbers, timestamps):
                latest[number] = timestamp
            return timestamps, latest
        newest: list[int] = []
        for number, timestamp in zip(self.numbers, timestamps):
            if latest[number] > timestamp:
                timestamp = latest[number]
            else:
                latest[number] = timestamp
            newest.append(timestamp)
        return newest, latest


@dataclass(frozen=True)
class Folded:
    """The results of folding a batch.

    Attributes:
        results: Per record, the aggregate that includes the record. If a record could not be folded, the results end before it.
        timestamps: Per result, the largest timestamp of its key so far, ms since the epoch.
        entries: The entries after the batch, by key number.
        stored: Returns a result as the store returns it.
    """

    results: list[Any]
    timestamps: list[int]
    numbers: Sequence[int]
    entries: list[Entry]
    stored: Callable[[Any], Any]

    def head(self, records: int) -> Folded:
        """Return the results of the first records only."""
        results, timestamps = self.results[:records], self.timestamps[:records]
        last = dict(zip(self.numbers, range(len(results)))).values()  # in the order of the numbers
        entries = [(self.stored(results[record]), timestamps[record]) for record in last]
        return Folded(results, timestamps, self.numbers, entries, self.stored)


Folding = Callable[[Before, Sequence[Any], "list[int]", "list[int] | None"], Folded]
"""Folds a batch: the entries before it, and the values, timestamps and weights of its records."""


def read_before(fetch: Fetch, keys: Sequence[bytes]) -> tuple[list[bytes], Before]:
    """Return the distinct keys of a batch, and their entries before the batch.

    Each record's key is looked up only once, because comparing bytes from scattered memory is the most expensive operation on keys.
    """
    numbers: dict[bytes, int] = defaultdict(count().__next__)
    per_record = list(map(numbers.__getitem__, keys))
    once, entries = list(numbers), list[Entry | None]()
    with suppress(Exception):  # the records before the first unreadable entry are folded
        entries.extend(map(fetch, once))
    return once, Before(per_record, entries, len(once))


def folding(fold: Fold, serde: Serde[Any]) -> Folding:
    """Return a function that folds batches.

    Args:
        serde: Serde of the aggregates. A value that it cannot serialise is not a valid result.
    """
    return _folded_counts if fold is Fold.COUNT else _Combining(fold, serde).folded


def needs_values(fold: Fold) -> bool:
    return fold is not Fold.COUNT


def _folded_counts(
    before: Before, values: Sequence[Any], timestamps: list[int], weights: list[int] | None
) -> Folded:
    counts = [0 if entry is None else entry[0] for entry in before.entries]
    results: list[int] = []
    give = results.append
    if weights is None:
        for number in before.readable():
            counts[number] = counted = counts[number] + 1
            give(counted)
    else:
        for number, weight in zip(before.readable(), weights):
            counts[number] = counted = counts[number] + weight
            give(counted)
    return before.folded(results, counts, timestamps)


class _Combining:
    """Folds values with the step function of a recipe. Stateless.

    The next step gets an aggregate as the store returns it, because its serde may change it: ``float32`` rounds it.
    """

    def __init__(self, fold: Fold, serde: Serde[Any]) -> None:
        recipe = RECIPES[fold]
        self._step, self._step_of_several, self._zero = recipe.step, recipe.step_of_several, recipe.zero
        values = Values("", serde)
        self._checked, self._fits = values.checked, values.fits
        self._known = frozenset(serde.accepts)

    def folded(
        self, before: Before, values: Sequence[Any], timestamps: list[int], weights: list[int] | None
    ) -> Folded:
        step = self._step
        if weights is not None and self._step_of_several is not None:
            step, values = self._step_of_several, list(zip(values, weights))
        results, so_far = self._fold(step, before, values, self._known)
        try:
            fit = all(map(self._fits, results))
        except TypeError:  # a result of another type than those in accepts
            fit = False
        if not fit:
            results, so_far = self._fold(step, before, values, frozenset())
        return before.folded(results, so_far, timestamps, self._stored)

    def _fold(
        self, step: Callable[[Any, Any], Any], before: Before, values: Sequence[Any], known: frozenset[type]
    ) -> tuple[list[Any], list[Any]]:
        """Return the results, and by key number the last one as the store returns it.

        Args:
            known: The types of results that fit.
        """
        results: list[Any] = []
        give, zero, stored = results.append, self._zero, self._stored
        so_far = [zero if entry is None else entry[0] for entry in before.entries]
        with suppress(
            Exception
        ):  # the number of results identifies the failed record; processing record by record then reports the error
            for number, value in zip(before.readable(), values):
                old = so_far[number]
                new = value if old is None else step(old, value)
                so_far[number] = new if type(new) in known else stored(new)
                give(new)
        return results, so_far

    def _stored(self, new: Any) -> Any:
        stored = None if new is None else self._checked(new)
        if stored is None:
            raise ValueError("a result that deletes the entry")
        return stored


@compile_node.register
def _compile_aggregate(node: n.Aggregate, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    store = runtime.stores[node.store.name]
    fetch, key_bytes = store.fetch, node.store.key.serialize
    write = store.write_fitting if node.fits else store.write
    initializer, aggregator = node.initializer, _aggregator(node, compiled)
    old_again = compiled.reads_old_again(node)

    def aggregate(key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is None or value is None:
            return runtime.drop(INCOMPLETE)
        old = None
        try:
            stored_key = key_bytes(key)
            entry = fetch(stored_key)
            if entry is not None:
                old, then = entry
                if then > timestamp:
                    timestamp = then
                new = aggregator(key, value, old)
                if old_again:
                    old = fetch(stored_key)[0]
            elif initializer is not None:
                new = aggregator(key, value, initializer())
            else:
                new = value
            write(stored_key, None if new is None else (new, timestamp))
        except Exception as error:
            return runtime.on_error("process", name, error)
        return child(key, new, old, timestamp, headers)

    return aggregate


def _aggregator(node: n.Aggregate, compiled: Compiled) -> Callable[[Any, Any, Any], Any]:
    """Return the function of a node. If readers may combine its records, the function considers how many each of them stands for."""
    step_of_several = None if node.fold is None else RECIPES[node.fold].step_of_several
    if step_of_several is None or not compiled.takes_combined(node):
        return node.aggregator
    step, of_several, weight_of_record = node.aggregator, step_of_several, compiled.runtime.weight

    def aggregator(key: Any, value: Any, aggregate: Any) -> Any:
        weight = weight_of_record()
        return step(key, value, aggregate) if weight == 1 else of_several(aggregate, (value, weight))

    return aggregator


@columns_of.register
def _aggregate_columns(node: n.Aggregate, compiled: Compiled) -> Form | None:
    form = form_downstream(node, compiled)
    if node.fold is None or form is None:
        return None
    runtime, row, child, key = compiled.runtime, compiled.call(node), form.call, node.store.key
    store, with_values = runtime.stores[node.store.name], needs_values(node.fold)
    fetch, put, fold = store.fetch, store.write_fitting, folding(node.fold, node.store.value)

    def aggregate(columns: Columns) -> None:
        columns = without_nulls(columns, runtime, INCOMPLETE)
        try:
            keys: Any = columns.keys.serialised(key)
            values = columns.values.objects() if with_values else ()
        except Exception:  # then process record by record, to find the bad ones
            return call_per_row(columns, row, runtime)
        once, before = read_before(fetch, keys)
        folded = fold(before, values, columns.timestamps, columns.weights)
        deque(map(put, once, folded.entries), maxlen=0)
        done = len(folded.results)
        if done:
            folded_ones = columns if done == len(keys) else columns.part(0, done)
            child(folded_ones.with_values(folded.results, folded.timestamps))
        if done < len(keys):
            call_per_row(columns.part(done, len(keys)), row, runtime)
        return None

    return Form(aggregate, form.calls_functions)


@compile_node.register
def _compile_table_aggregate(node: n.TableAggregate, compiled: Compiled) -> Call:
    runtime, name, child = compiled.runtime, node.name, compiled.children(node)
    store = runtime.stores[node.store.name]
    key_bytes, old_again = node.store.key.serialize, compiled.reads_old_again(node)

    def next_aggregate(key: Any, change: Any, aggregate: Any) -> Any:
        new, old = change
        if old is not None and aggregate is not None:
            aggregate = node.subtractor(key, old, aggregate)
        if new is None:
            return aggregate
        if aggregate is None:
            if node.initializer is None:
                return new
            aggregate = node.initializer()
        return node.adder(key, new, aggregate)

    def table_aggregate(key: Any, change: Any, timestamp: int, headers: Headers) -> None:
        try:
            if key is None or change is None:
                raise MillstreamError(
                    f"{name!r}: a record of its repartition has no key or no change; only this application may write to that topic"
                )
            stored_key = key_bytes(key)
            entry = store.fetch(stored_key)
            old, then = entry if entry is not None else (None, -1)
            timestamp = max(timestamp, then)
            new = next_aggregate(key, change, old)
            if old_again and entry is not None:
                old = store.fetch(stored_key)[0]
            store.write(stored_key, None if new is None else (new, timestamp))
        except Exception as error:
            return runtime.on_error("process", name, error)
        child(key, new, old, timestamp, headers)

    return table_aggregate
