"""The methods of the test driver for stores and tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from millstream.core.model.errors import SettingsError
from millstream.core.model.record import ValueAndTimestamp
from millstream.core.model.windowed import VersionedRecord, Windowed
from millstream.testing._driver_faults import DriverFaults
from millstream.testing._tasks import store_of, stores_of
from millstream.testing.slice_file import read_slice
from millstream.testing.tables.markdown_tables import Row, cell_of, check_same, normal, read_table, value_in

_INPUT: Final = ("time", "topic", "partition", "key", "value", "advance")
_OUTPUT: Final = ("time", "key", "value")
_STORE: Final = ("key", "start", "end", "value", "time")


class DriverTables(DriverFaults):
    """The methods of ``TopologyTestDriver`` for stores and tables."""

    def pipe_table(self, table: str, topic: str | None = None) -> None:
        """Process the records in a table, one per row.

        Args:
            table: A table in Markdown format. Its columns: ``key``, ``value``; ``time``, ms since the epoch, 0 by default; ``topic``;
                ``partition``; and ``advance``, by which the wall clock advances before the record, in ms. A row with no other cell only
                advances the clock. A cell is JSON, or else text; an empty cell is None.
            topic: The topic of rows without one.

        Raises:
            SettingsError: If the table cannot be read, or a row has no topic.
            TopicNotFoundError: If the topology does not read a topic.
            MillstreamError: If a record fails under the policy "fail".

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> bids = builder.stream("bids", value=ms.serdes.int64).group_by_key()
            >>> bids.reduce(max, store="highest").to_stream().to("out")
            >>> with ms.testing.TopologyTestDriver(builder.build()) as driver:
            ...     driver.pipe_table('''
            ...         | time | key  | value |
            ...         |    1 | vase |    10 |
            ...         |    2 | vase |    30 |
            ...         |    3 | lamp |     5 |
            ...     ''', "bids")
            ...     driver.expect("out", '''
            ...         | key  | value |
            ...         | vase |    10 |
            ...         | vase |    30 |
            ...         | lamp |     5 |
            ...     ''')
            ...     driver.expect_store("highest", '''
            ...         | key  | value | time |
            ...         | vase |    30 |    2 |
            ...         | lamp |     5 |    3 |
            ...     ''')
        """
        for row in read_table(table, _INPUT):
            cells = {name: value_in(cell) for name, cell in row.items()}
            if cells.get("advance") is not None:
                self.advance_wall_clock(_whole_number("advance", cells.pop("advance")))
                if all(value is None for value in cells.values()):
                    continue
            to = cells.get("topic") or topic
            if to is None:
                raise SettingsError(
                    "a row of the table has no topic: add a column 'topic', or pass the topic: pipe_table(..., topic)"
                )
            partition = cells.get("partition")
            self.pipe(
                str(to),
                cells.get("key"),
                cells.get("value"),
                _whole_number("time", cells.get("time") or 0),
                partition=None if partition is None else _whole_number("partition", partition),
            )

    def replay(self, file: str | Path) -> int:
        """Process the records of a slice that ``millstream record`` has written, merged by timestamp.

        Each record goes to its original partition, or, if the topic has fewer partitions here (``partitions``), to the partition of its
        key. ``docs/how-to/test-a-topology.md`` has a tested example.

        Args:
            file: The file.

        Returns:
            The number of records.

        Raises:
            SettingsError: If the file cannot be read.
            TopicNotFoundError: If the topology does not read a topic of the slice.
            MillstreamError: If a record fails under the policy "fail".
        """
        records = read_slice(file)
        for record in records:
            exists = record.partition < self._topics.partitions_of(record.topic)
            partition = record.partition if exists else None
            self.pipe(
                record.topic,
                record.key,
                record.value,
                record.timestamp,
                record.headers,
                partition=partition,
            )
        return len(records)

    def expect(self, topic: str, table: str) -> None:
        """Compare the records sent to a topic since it was last read with a table, in order. For an example, see :meth:`pipe_table`.

        Args:
            topic: The topic.
            table: A table with some of the columns ``time``, ``key`` and ``value``; other columns are not compared.

        Raises:
            AssertionError: If the records differ; the message shows the difference.
            SettingsError: If the table cannot be read.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        expected, columns = normal(read_table(table, _OUTPUT)), _columns(table, _OUTPUT)
        actual = (
            {"time": cell_of(record.timestamp), "key": cell_of(record.key), "value": cell_of(record.value)}
            for record in self.read(topic)
        )
        check_same(f"topic {topic}", expected, _select_columns(actual, columns), columns)

    def expect_store(self, name: str, table: str, *, partition: int | None = None) -> None:
        """Compare the content of a store with a table, in any order of the rows. For an example, see :meth:`pipe_table`.

        Args:
            name: The store.
            table: A table with some of the columns ``key``, ``value``, ``time`` (of stores with timestamps, and of versioned stores), and ``start`` and ``end`` (of
                window and session stores); other columns are not compared.
            partition: The partition of the task; see :meth:`store`.

        Raises:
            AssertionError: If the content differs; the message shows the difference.
            SettingsError: If the table cannot be read.
            StoreError: If there is no such store, or several tasks have it.
        """
        __tracebackhide__ = True
        expected, columns = normal(read_table(table, _STORE)), _columns(table, _STORE)
        actual = _select_columns(
            (_entry(*entry) for entry in self.store(name, partition=partition).all()), columns
        )
        expected, actual = (
            sorted(rows, key=lambda row: [row[name] for name in columns]) for rows in (expected, actual)
        )
        check_same(f"store {name}", expected, actual, columns)

    def store(self, name: str, *, partition: int | None = None) -> Any:
        """Return a store of any kind, for reading or writing.

        Args:
            name: The store.
            partition: The partition of the task, if the store has one instance per partition. With ``parallelism``, the number of the
                task: the partition times the number of key ranges, plus the range.

        Returns:
            The store, with the methods of its kind.

        Raises:
            StoreError: If the topology has no such store, or if several tasks have it and ``partition`` is None.

        Source: ``TopologyTestDriver.getStateStore``, ``getKeyValueStore``, ``getWindowStore``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> counts = builder.stream("in").group_by_key().count(store="counts")
            >>> with ms.testing.TopologyTestDriver(builder.build()) as driver:
            ...     driver.pipe("in", "k", "v")
            ...     driver.store("counts").get("k").value
            1
        """
        return store_of(self._runner.tasks.values(), name, partition)

    def stores(self, *, partition: int | None = None) -> dict[str, Any]:
        """Return all stores by name, including global stores.

        Args:
            partition: The partition of the tasks whose stores to return; None for all tasks.

        Returns:
            The stores; see :meth:`store`.

        Raises:
            StoreError: If several tasks have a store and ``partition`` is None.

        Source: ``TopologyTestDriver.getAllStateStores``.

        Example:
            >>> import millstream as ms
            >>> builder = ms.StreamsBuilder()
            >>> counts = builder.stream("in").group_by_key().count(store="counts")
            >>> with ms.testing.TopologyTestDriver(builder.build()) as driver:
            ...     sorted(driver.stores())
            ['counts']
        """
        return stores_of(self._runner.tasks.values(), partition)


def _entry(key: object, value: object) -> Row:
    row = {"start": "null", "end": "null", "time": "null"}
    if isinstance(key, Windowed):
        row |= {"start": cell_of(key.start), "end": cell_of(key.end)}
        key = key.key
    if isinstance(value, ValueAndTimestamp | VersionedRecord):
        row["time"] = cell_of(value.timestamp)
        value = value.value
    return {**row, "key": cell_of(key), "value": cell_of(value)}


def _select_columns(rows: Iterable[Row], columns: tuple[str, ...]) -> list[Row]:
    return [{name: row[name] for name in columns} for row in rows]


def _columns(table: str, known: tuple[str, ...]) -> tuple[str, ...]:
    head = next(line for line in table.splitlines() if line.strip())
    return tuple(name for name in (cell.strip() for cell in head.split("|")) if name in known)


def _whole_number(column: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise SettingsError(f"column {column} has whole numbers, not {value!r}")
    return value
