"""Records of a repartition topic are merged by timestamp across the tasks that wrote them."""

from __future__ import annotations

from millstream.core.engine.records.merging import WRITER_HEADER, merged_by_time
from millstream.core.model.record import Headers, Records


def merged(times: list[int], headers: list[Headers] | None) -> list[int]:
    numbers = list(range(len(times)))
    (records,) = merged_by_time([Records([b"k"] * len(times), [b"v"] * len(times), times, numbers, headers)])
    return records.offsets


def test_records_without_headers_keep_their_order() -> None:
    assert merged([30, 10, 20], None) == [0, 1, 2]


def test_records_without_a_writer_header_form_one_lane() -> None:
    lanes: list[Headers] = [(), (), ((WRITER_HEADER, b"0_1"),), (("own", b""),)]
    assert merged([30, 10, 20, 40], lanes) == [2, 0, 1, 3]


def test_records_with_equal_times_are_ordered_by_the_number_of_their_writer() -> None:
    lanes: list[Headers] = [((WRITER_HEADER, writer),) for writer in (b"0_10", b"0_2", b"0_10", b"0_2")]
    assert merged([5, 5, 5, 5], lanes) == [1, 3, 0, 2]
