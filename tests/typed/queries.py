"""Types that mypy and pyright infer for queries of stores; `joins.py` explains how to read this file."""

from __future__ import annotations

from typing import Any, assert_type

import millstream as ms


def key_values(running: ms.RunningApplication) -> None:
    assert_type(running.store("counts"), ms.StoreReader[Any, Any])
    counts: ms.StoreReader[str, int] = running.store("counts")
    assert_type(counts.get("tea"), int | None)
    assert_type(counts.range("milk", "salt"), list[tuple[str, int]])
    assert_type(counts.range(high="salt"), list[tuple[str, int]])
    assert_type(counts.prefix_scan(b"t"), list[tuple[str, int]])
    assert_type(counts.reverse_all(limit=3), list[tuple[str, int]])
    assert_type([count + 1 for _, count in counts.all()], list[int])
    counts.get(7)  # type: ignore[arg-type]
    counts.range(low=7)  # type: ignore[arg-type]
    counts.fetch("tea", 0)  # type: ignore[call-overload, misc]
    counts.find_sessions("tea", 0, 1)  # type: ignore[arg-type, misc]


def windows_and_sessions(application: ms.RemoteApplication) -> None:
    minutes: ms.StoreReader[ms.Windowed[str], int] = application.store("minutes")
    assert_type(minutes.fetch("tea", 0), int | None)
    assert_type(minutes.fetch("tea", 0, 60_000, limit=3), list[tuple[int, int]])
    assert_type(minutes.fetch_all(0, 60_000), list[tuple[ms.Windowed[str], int]])
    assert_type(minutes.fetch_range("milk", None, 0, 60_000), list[tuple[ms.Windowed[str], int]])
    assert_type(minutes.all(), list[tuple[ms.Windowed[str], int]])
    assert_type(minutes.fetch("tea"), list[tuple[ms.Windowed[str], int]])
    assert_type(minutes.fetch_session("tea", 0, 1), int | None)
    assert_type(minutes.find_sessions("tea", 0, 1), list[tuple[ms.Windowed[str], int]])
    minutes.fetch(7, 0)  # type: ignore[call-overload]
    minutes.fetch_session(7, 0, 1)  # type: ignore[arg-type]


def values_with_times(lab: ms.Lab) -> None:
    counts: ms.StoreReader[str, ms.ValueAndTimestamp] = lab.store("counts", timestamps=True)
    assert_type(counts.get("tea"), ms.ValueAndTimestamp | None)
    prices: ms.StoreReader[str, ms.VersionedRecord] = lab.store("prices")
    assert_type(prices.get("tea", 1_700_000_000_000), ms.VersionedRecord | None)


def types_unknown(running: ms.RunningApplication) -> None:
    assert_type(running.store("minutes").fetch("tea", 0), Any | None)
    assert_type(running.store("counts").range(), list[tuple[Any, Any]])
