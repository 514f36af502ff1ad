"""Arguments that the test driver refuses, before they break a task or silently do nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date, datetime
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import MillstreamError, SettingsError, TopicNotFoundError, TopologyError
from millstream.testing import TopologyTestDriver


def topology() -> ms.Topology:
    builder = ms.StreamsBuilder()
    words = builder.stream("in", key=ms.serdes.string, value=ms.serdes.string)
    words.group_by_key().count(store="counts").to_stream().to("out", value=ms.serdes.int64)
    return builder.build()


@pytest.fixture
def driver() -> Iterator[TopologyTestDriver]:
    with TopologyTestDriver(topology()) as open_driver:
        yield open_driver


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"wall_clock_ms": "noon"}, "wall_clock_ms='noon': it must be a whole number of ms"),
        ({"wall_clock_ms": datetime(2026, 1, 31)}, "it must be a whole number of ms"),
        ({"wall_clock_ms": 2**63}, "at most 9223372036854775807"),
        ({"policies": "skip"}, "policies='skip': it must be of type ErrorPolicies, or None"),
        (
            {"policies": ms.ErrorPolicies(process="dead_letter")},
            "process='dead_letter' of the error policies needs dead_letter_topic='...'",
        ),
        (
            {"policies": ms.ErrorPolicies(operators={"counts": "dead_letter"})},
            "operators['counts']='dead_letter' of the error policies needs dead_letter_topic='...'",
        ),
        (
            {"policies": ms.ErrorPolicies(process=ms.Retrying(2, then="dead_letter"))},
            "process=Retrying(attempts=2, then='dead_letter', ",
        ),
        ({"app_config": "x"}, "app_config='x': it must be of type Mapping, or None"),
        ({"snapshot": {}}, "snapshot={}: it must be of type DriverSnapshot, or None"),
        ({"renamed_stores": ["counts"]}, "renamed_stores=['counts']: it must be of type Mapping, or None"),
        (
            {"statestore_cache_max_bytes": -1},
            "statestore_cache_max_bytes=-1: it must be a whole number of bytes",
        ),
        (
            {"statestore_cache_max_bytes": "1m"},
            "statestore_cache_max_bytes='1m': it must be a whole number of bytes",
        ),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(why)):
        TopologyTestDriver(topology(), **options)


@pytest.mark.parametrize("name", ["", "a b", "x" * 300])
def test_an_invalid_application_id_is_refused(name: str) -> None:
    with pytest.raises(TopologyError, match="cannot be the name of an application"):
        TopologyTestDriver(topology(), application_id=name)


def test_a_timestamp_that_kafka_cannot_store_is_refused_without_effect(driver: TopologyTestDriver) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"timestamp={2**63}: it must be a whole number of ms")):
        driver.pipe("in", "k", "v", 2**63)
    driver.pipe("in", "k", "v", 2**63 - 1)
    assert [record.value for record in driver.read("out")] == [1]


@pytest.mark.parametrize("start", ["noon", 1.5, date(2026, 1, 31), 2**63])
def test_an_invalid_start_time_of_a_topic_is_refused(driver: TopologyTestDriver, start: Any) -> None:
    with pytest.raises(SettingsError, match=r"start=.*: it must be a whole number of ms"):
        driver.input_topic("in", start=start)


def test_a_topic_refuses_arguments_that_are_not_serdes(driver: TopologyTestDriver) -> None:
    wrong: Any = str
    with pytest.raises(SettingsError, match="<class 'str'> is not a serde"):
        driver.input_topic("in", value=wrong)
    with pytest.raises(SettingsError, match="<class 'str'> is not a serde"):
        driver.output_topic("out", key=wrong)


@pytest.mark.parametrize("name", [None, 5])
def test_a_topic_name_must_be_text(driver: TopologyTestDriver, name: Any) -> None:
    for method in (driver.read, driver.output_topic):
        with pytest.raises(TopicNotFoundError, match="not the name of a topic"):
            method(name)


def test_a_topic_that_is_not_read_cannot_be_released(driver: TopologyTestDriver) -> None:
    with pytest.raises(TopicNotFoundError, match="the topology does not read topic 'inn'"):
        driver.release("inn")


@pytest.mark.parametrize(
    "use",
    [
        lambda driver: driver.pipe("in", "k", "v"),
        lambda driver: driver.input_topic("in").pipe("k", "v"),
        lambda driver: driver.release("in"),
        lambda driver: driver.advance_wall_clock(5),
        lambda driver: driver.crash(),
    ],
)
def test_a_closed_driver_processes_nothing(use: Callable[[TopologyTestDriver], Any]) -> None:
    with TopologyTestDriver(topology()) as before:
        before.pipe("in", "k", "v")
        before.edited(topology()).close()
    with pytest.raises(MillstreamError, match=r"the driver is closed.*edited\(\) has returned"):
        use(before)
    assert len(before.read("out")) == 1  # what it has sent can still be read
