"""A join with a global table is a lookup in a dict of the newest value per key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.topology.topology import Topology

KEYS = st.sampled_from(["a", "b", "c"])
RECORDS = st.lists(
    st.one_of(
        st.tuples(st.just("table"), KEYS, st.none() | st.integers(0, 9).map(str)),
        st.tuples(st.just("in"), st.none() | KEYS, st.none() | KEYS | st.just("-")),
    ),
    max_size=30,
)


def topology(*, left: bool) -> Topology:
    builder = ms.StreamsBuilder()
    table, stream = builder.global_table("table"), builder.stream("in")
    (stream.left_join if left else stream.join)(table, row_key, lambda value, row: f"{value}{row}").to("out")
    return builder.build()


def row_key(_key: str | None, value: str) -> str | None:
    return None if value == "-" else value


@given(RECORDS, st.booleans())
def test_each_record_is_joined_with_the_newest_row_of_the_global_table(
    records: list[tuple[str, str | None, str | None]], left: bool
) -> None:
    rows: dict[str | None, str] = {}
    expected = []
    with ms.testing.TopologyTestDriver(topology(left=left)) as driver:
        for topic, key, value in records:
            driver.pipe(topic, key, value)
            if topic == "table":
                rows.pop(key, None)
                rows |= {} if value is None else {key: value}
            elif value is not None and (left or value in rows):
                expected.append((key, f"{value}{rows.get(value)}"))
        assert [(record.key, record.value) for record in driver.read("out")] == expected
        assert {key: row.value for key, row in driver.store("table-table").all()} == rows
