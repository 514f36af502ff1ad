"""Changelog records: a store is rebuilt from the records that were published for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import SettingsError, TopologyError
from millstream.core.model.record import Records
from millstream.core.ports import StoreChange
from millstream.core.state.changelog_records import from_records, is_live, to_records
from millstream.core.state.memory import MemoryStores
from millstream.core.state.opening import open_store
from millstream.core.topology.internal import REPARTITION_CONFIG, changelog_config, wrong_config
from millstream.edge.settings.settings_loading import settings_from

HOUR = 3_600_000
PLAIN = ms.stores.key_value("s", ms.serdes.string, ms.serdes.int64)
STAMPED = ms.stores.key_value("s", ms.serdes.string, ms.serdes.int64, timestamped=True)
WINDOW = ms.stores.window("s", ms.serdes.string, ms.serdes.int64, retention=HOUR, size=60_000)
KINDS = {
    "plain": PLAIN,
    "timestamped": STAMPED,
    "expiring": ms.stores.key_value("s", ms.serdes.string, ms.serdes.int64, ttl=HOUR),
    "lru": ms.stores.lru("s", ms.serdes.string, ms.serdes.int64, capacity=2),
    "window": WINDOW,
    "session": ms.stores.session("s", ms.serdes.string, ms.serdes.int64, retention=HOUR),
    "versioned": ms.stores.versioned("s", ms.serdes.string, ms.serdes.int64, history_retention=HOUR),
}


def fill(store: Any, kind: str) -> None:
    for key, value, timestamp in (("a", 1, 0), ("ab", 2, 70_000), ("", 3, 5_000_000), ("a", 4, 5_000_001)):
        if kind == "timestamped":
            store.put(key, ms.ValueAndTimestamp(value, timestamp))
        elif kind in ("window", "versioned"):
            store.put(key, value, timestamp)
        elif kind == "session":
            store.put(ms.Windowed(key, timestamp, timestamp + 10), value)
        else:
            store.put(key, value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_store_is_rebuilt_from_its_changelog_records(kind: str) -> None:
    spec, committed, published = KINDS[kind], MemoryStores(), MemoryStores()
    store = open_store(spec, committed)
    fill(store, kind)
    drained, memory = store.drain(), store.memory()
    committed.apply(drained.changes, drained.dropped)
    for name, changes in drained.changes.items():
        for byte_store, items in from_records(spec, to_records(spec, name, changes, 3, 99)).items():
            assert byte_store == name
            published.open(byte_store).apply(items)
    assert {name: list(published.open(name).scan(None, None)) for name in drained.changes} == {
        name: list(committed.open(name).scan(None, None)) for name in drained.changes
    }
    rebuilt = open_store(spec, published, memory=memory)
    read = "all" if hasattr(rebuilt, "all") else None
    if read:
        assert list(rebuilt.all()) == list(open_store(spec, committed, memory=memory).all())


def test_changelog_records_of_a_key_value_store_are_those_of_kafka_streams() -> None:
    changes: list[StoreChange] = [(b"k", b"\x00\x00\x00\x00\x00\x00\x00\x07value"), (b"gone", None)]
    records = to_records(STAMPED, "s", changes, 2, 99)
    assert (records.keys, records.values, records.timestamps) == ([b"k", b"gone"], [b"value", None], [7, 99])
    assert (records.partitions, records.headers) == ([2, 2], None)


def test_the_timestamp_zero_survives_clients_that_replace_it_by_the_current_time() -> None:
    records = to_records(STAMPED, "s", [(b"k", bytes(8) + b"v"), (b"l", bytes(7) + b"\x01v")], 0, 99)
    sent = Records(records.keys, records.values, [12345, 1], [0, 1], records.headers)
    assert from_records(STAMPED, sent) == {"s": [(b"k", bytes(8) + b"v"), (b"l", bytes(7) + b"\x01v")]}


def test_byte_stores_of_one_store_do_not_share_keys() -> None:
    first, second = (to_records(WINDOW, name, [(b"k", b"v")], 0, 99) for name in ("s/0", "s/1800000"))
    assert first.keys != second.keys
    assert from_records(WINDOW, first) == {"s/0": [(b"k", b"v")]}


def test_slices_that_the_store_has_dropped_are_not_live() -> None:
    memory = {"time": 9_000_000, "floor": 1_800_000, "slices": [[5_400_000, 7_200_000]]}
    assert is_live(WINDOW, "s/5400000", memory)
    assert not is_live(WINDOW, "s/0", memory)
    assert is_live(PLAIN, "s", {})


def test_topics_are_configured_as_in_kafka_streams() -> None:
    times = {"message.timestamp.type": "CreateTime"}
    assert changelog_config(PLAIN) == {"cleanup.policy": "compact", **times}
    windows = {"cleanup.policy": "compact,delete", "retention.ms": str(25 * HOUR), **times}
    assert changelog_config(WINDOW) == windows
    assert changelog_config(KINDS["versioned"])["min.compaction.lag.ms"] == str(25 * HOUR)
    assert {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "segment.bytes": "52428800",
        **times,
    } == REPARTITION_CONFIG


def test_times_in_topic_configs_do_not_exceed_what_a_broker_accepts() -> None:
    longest = (1 << 63) - 1
    window = replace(WINDOW, retention=longest - 5)
    assert changelog_config(window)["retention.ms"] == str(longest)
    versioned = ms.stores.versioned("s", ms.serdes.string, ms.serdes.int64, history_retention=longest - 5)
    assert changelog_config(versioned)["min.compaction.lag.ms"] == str(longest)


def test_the_topic_config_of_a_store_overrides_the_config_of_all_topics() -> None:
    spec = replace(PLAIN, changelog="kafka", changelog_config={"segment.ms": "1"})
    config = changelog_config(spec, {"segment.ms": "2", "min.insync.replicas": "2"})
    assert (config["segment.ms"], config["min.insync.replicas"]) == ("1", "2")


@pytest.mark.parametrize(
    "name",
    ["cleanup.policy", "message.timestamp.type", "retention.ms", "retention.bytes", "min.compaction.lag.ms"],
)
def test_topic_configs_that_the_application_decides_are_refused(name: str) -> None:
    with pytest.raises(
        TopologyError, match=f"store 's': changelog_config: '{name}' cannot be set for internal topics"
    ):
        replace(PLAIN, changelog="kafka", changelog_config={name: "1"})
    with pytest.raises(
        SettingsError, match=f"'internal_topic_config' .*'{name}' cannot be set for internal topics"
    ):
        settings_from({"bootstrap_servers": "b:1", "internal_topic_config": {name: "1"}})


def test_a_topic_config_needs_a_changelog_topic_and_valid_values() -> None:
    with pytest.raises(TopologyError, match="changelog_config applies only to changelog='kafka'"):
        replace(PLAIN, changelog_config={"segment.ms": "1"})
    with pytest.raises(TopologyError, match="names and values must be strings"):
        replace(PLAIN, changelog="kafka", changelog_config={"segment.ms": 1})
    with pytest.raises(TopologyError, match=r"'unclean\.leader\.election\.enable' can only be false"):
        replace(PLAIN, changelog="kafka", changelog_config={"unclean.leader.election.enable": "true"})


@pytest.mark.parametrize(
    ("wanted", "found", "wrong"),
    [
        (REPARTITION_CONFIG, {"cleanup.policy": "delete"}, []),
        (REPARTITION_CONFIG, {"cleanup.policy": "compact,delete"}, ["cleanup.policy"]),
        (REPARTITION_CONFIG, {"message.timestamp.type": "LogAppendTime"}, ["message.timestamp.type"]),
        (changelog_config(PLAIN), {"cleanup.policy": "compact"}, []),
        (changelog_config(PLAIN), {"cleanup.policy": "delete"}, ["cleanup.policy"]),
        (changelog_config(PLAIN), {"cleanup.policy": "delete,compact"}, ["cleanup.policy"]),
        (changelog_config(WINDOW), {"cleanup.policy": "delete,compact"}, []),
        (changelog_config(WINDOW), {"cleanup.policy": "compact"}, []),
        (changelog_config(WINDOW), {"cleanup.policy": "delete"}, ["cleanup.policy"]),
    ],
)
def test_topic_configs_that_make_results_wrong_are_found(
    wanted: dict[str, str], found: dict[str, str], wrong: list[str]
) -> None:
    assert list(wrong_config(wanted, found)) == wrong
