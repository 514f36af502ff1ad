"""The lag refers to the end offsets that brokers reported last, and it is known how long ago that was."""

from __future__ import annotations

from millstream.edge.status.topic_ends import TopicEnds


def test_the_last_known_ends_remain_while_no_broker_answers_and_their_age_is_counted() -> None:
    ends = TopicEnds()
    assert (ends.lag({}, str), ends.unknown_s()) == ({}, 0.0)
    ends.note({"in": {0: 5, 1: 3}, "again": {0: 2}})
    assert ends.lag({"in": {0: 1}, "again": {0: 4}}, str) == {"in": 7, "again": 0}
    assert ends.unknown_s() == 0.0
    ends.note(None)
    unknown_s = ends.unknown_s()
    assert unknown_s > 0
    ends.note(None)
    assert ends.unknown_s() > unknown_s
    assert ends.lag({}, str) == {"in": 8, "again": 2}
    ends.note({"in": {0: 6}})
    assert (ends.lag({}, str), ends.unknown_s()) == ({"in": 6}, 0.0)


def test_the_lag_of_a_stream_is_the_sum_over_all_its_topics() -> None:
    ends = TopicEnds()
    ends.note({"orders": {0: 5}, "orders-fan-out": {0: 3}})
    assert ends.lag({"orders": {0: 4}}, lambda topic: "orders") == {"orders": 4}
