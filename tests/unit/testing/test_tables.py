"""Markdown tables in tests: how cells are read, and how differences are shown."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.model.errors import SettingsError
from millstream.testing.tables.markdown_tables import cell_of, normal, read_table, value_in

Driver = ms.testing.TopologyTestDriver
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(JSON)
def test_a_cell_is_read_as_the_value_that_was_written(value: Any) -> None:
    cell = cell_of(value)
    (row,) = read_table(f"| key | value |\n| k | {cell} |", ("key", "value"))
    assert (value_in(row["value"]), row["key"]) == (value, "k")
    assert type(value_in(row["value"])) is type(value)


@dataclass
class Point:
    x: str


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (Decimal("1.5"), "1.5"),
        (Decimal("1.10"), '"1.10"'),
        (b"\xff|", "\"b'\\\\xff\\u007c'\""),
        (Point("|"), "\"Point(x='\\u007c')\""),
        (Point("a"), "Point(x='a')"),
    ],
)
def test_a_printed_cell_has_the_same_value_when_it_is_copied(value: Any, cell: str) -> None:
    assert cell_of(value) == cell
    assert normal([{"value": cell}]) == [{"value": cell}]
    assert read_table(f"| value |\n| {cell} |", ("value",)) == [{"value": cell}]


def test_the_table_of_a_versioned_store_has_values_and_times() -> None:
    builder = ms.StreamsBuilder()
    rates = ms.stores.options("rates", history_retention=60_000)
    builder.table("prices", key=ms.serdes.string, value=ms.serdes.string, store=rates)
    with Driver(builder.build()) as driver:
        driver.pipe("prices", "usd", "x", timestamp=7)
        driver.expect_store("rates", "| key | value | time |\n| usd | x | 7 |")


@pytest.mark.parametrize("value", ["a\u2028b", "a\x85b", ["\u2029"], {"\x9b31m": "\u202e"}])
def test_a_cell_has_no_line_breaks_and_no_control_characters(value: Any) -> None:
    cell = cell_of(value)
    assert cell.isprintable()
    assert [value_in(row["value"]) for row in read_table(f"| value |\n| {cell} |", ("value",))] == [value]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("", "is empty"),
        ("| key | colour |", "may have each of key, value"),
        ("| key | key |", "may have each of key, value"),
        ("| key | value |\n| a |", "has 1 cells"),
        (None, "is text in Markdown format, not None"),
    ],
)
def test_text_that_is_not_a_table_is_refused(table: Any, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        read_table(table, ("key", "value"))


def test_a_row_of_dashes_is_left_out_only_below_the_header() -> None:
    assert read_table("| value |\n|-------|\n| -     |\n| --    |", ("value",)) == [
        {"value": "-"},
        {"value": "--"},
    ]
    assert read_table("| value |\n| a     |\n| -     |", ("value",)) == [{"value": "a"}, {"value": "-"}]


@pytest.fixture
def driver() -> Any:
    builder = ms.StreamsBuilder()
    words = builder.stream("words")
    counts = words.group_by_key().windowed_by(ms.TumblingWindows(10, grace=100)).count(store="counts")
    counts.to_stream().map(lambda window, count: (window.key, count)).to("out", value=ms.serdes.int64)
    builder.stream("other", value=ms.serdes.json).to("copies", value=ms.serdes.json)
    with Driver(builder.build()) as driver:
        yield driver


RECORDS = """
    | time | key | value | topic |
    |-----:|-----|-------|-------|
    |    1 | a   | x     |       |
    |   11 | a   | x     | words |
    |   12 |     | x     |       |
    |   12 | a   | x     |       |
    |    5 | b   | {"n": [1, "|"]} | other |
""".replace('"|"', '"\\u007c"')


def test_records_can_be_piped_and_results_expected_as_tables(driver: Any) -> None:
    driver.pipe_table(RECORDS, "words")
    driver.expect("out", "| value | key |\n| 1 | a |\n| 1 | a |\n| 2 | a |")
    driver.expect("out", "| value |")
    driver.expect("copies", '| time | key | value |\n| 5 | b | {"n": [1, "\\u007c"]} |')
    driver.expect_store(
        "counts", "| key | start | end | value | time |\n| a | 10 | 20 | 2 | 12 |\n| a | 0 | 10 | 1 | 1 |"
    )


def test_a_difference_shows_missing_and_unexpected_rows(driver: Any) -> None:
    driver.pipe_table(RECORDS, "words")
    with pytest.raises(AssertionError) as error:
        driver.expect("out", "| key | value |\n| a | 1 |\n| a | 3 |\n| a | 2 |")
    assert str(error.value).splitlines() == [
        "topic out is not as expected (- missing, + unexpected):",
        "  | key | value |",
        "  |-----|-------|",
        "  | a   | 1     |",
        "- | a   | 3     |",
        "+ | a   | 1     |",
        "  | a   | 2     |",
    ]
    with pytest.raises(AssertionError, match=r"store counts is not as expected"):
        driver.expect_store("counts", "| key | value |\n| a | 1 |")


def test_a_row_can_advance_the_wall_clock() -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").map_values_async(lambda value: ms.delay(in_=50) if value == "late" else value).to(
        "out"
    )
    with Driver(builder.build()) as driver:
        driver.pipe_table("| key | value | advance |\n| k | early | |\n| | | 10 |\n| k | again | 10 |", "in")
        driver.expect("out", "| value |\n| early |\n| again |")
        assert driver._runner.now_ms == 20


def test_rows_without_a_topic_or_with_an_invalid_time_are_refused(driver: Any) -> None:
    with pytest.raises(SettingsError, match="has no topic"):
        driver.pipe_table("| key |\n| k |")
    with pytest.raises(SettingsError, match="column time has whole numbers, not 'soon'"):
        driver.pipe_table("| key | time |\n| k | soon |", "words")
