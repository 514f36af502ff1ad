"""The content of stores in a checkpoint, read without the application."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from millstream.core.model.errors import StoreError
from millstream.core.ports import Changes, store_of
from millstream.core.state.segments.log import Manifest, catch_up, decode_manifest
from millstream.drivers.segments import decode
from millstream.drivers.spark.executor.snapshots import TaskMemory
from millstream.drivers.spark.executor.statelog import unpacked


class StoredTask(NamedTuple):
    """The part of a store that one task has in the checkpoint.

    Attributes:
        memory: What the store remembers besides its content.
    """

    fingerprint: str
    memory: Mapping[str, Any]
    content: Changes


def stored_tasks(session: SparkSession, location: str, batch: int, store: str) -> Iterator[StoredTask]:
    """Read a store task by task. Runs two Spark jobs. Holds the segments of one Spark partition in memory.

    Raises:
        StoreError: If no task has such a store, or a segment is missing or damaged.
    """
    heads = (
        state_of(session, location, batch, "head")
        .selectExpr("struct(key.*) AS task", "value.manifest")
        .collect()
    )
    tasks = {}
    for row in heads:
        manifest, data = decode_manifest(bytes(row.manifest))
        tasks[tuple(row.task)] = (manifest, TaskMemory.from_json(data))
    having = {task: state for task, state in tasks.items() if store in state[1].stores}
    if not having:
        known = sorted({name for _, memory in tasks.values() for name in memory.stores})
        raise StoreError(
            f"the checkpoint {location} has no store {store!r} in micro-batch {batch}; it has {', '.join(map(repr, known)) or 'none'}"
        )
    segments: dict[tuple[Any, ...], dict[int, bytes]] = {task: {} for task in having}
    wanted = {task: _segment_sequences(manifest, store) for task, (manifest, _) in having.items()}
    numbers = sorted({number for of_task in wanted.values() for number in of_task})
    log = state_of(session, location, batch, "log").selectExpr(
        "struct(key.*) AS task", "user_map_key.sequence AS sequence", "user_map_value.segment AS segment"
    )
    for row in log.where(log.sequence.isin(numbers)).toLocalIterator() if numbers else ():
        task = tuple(row.task)
        if row.sequence in wanted.get(task, ()):
            segments[task][row.sequence] = bytes(row.segment)
            if len(segments[task]) == len(wanted[task]):
                yield _stored(*having[task], store, segments.pop(task))
    for task, found in segments.items():  # tasks whose store is empty, and those with missing segments
        yield _stored(*having[task], store, found)


def _stored(manifest: Manifest, memory: TaskMemory, store: str, segments: Mapping[int, bytes]) -> StoredTask:
    own = memory.store_memories().get(store, {})
    return StoredTask(memory.stores[store], own, _content(manifest, store, segments))


def manifests(session: SparkSession, location: str, batch: int) -> list[bytes]:
    """Read the manifest and the memory of each task. Runs a Spark job."""
    heads = state_of(session, location, batch, "head").select("value.manifest")
    return [bytes(row.manifest) for row in heads.collect()]


def state_of(session: SparkSession, location: str, batch: int, variable: str) -> DataFrame:
    """Return the groups of a state variable of the task host after a complete micro-batch."""
    reader = session.read.format("statestore").option("stateVarName", variable).option("batchId", batch)
    return reader.load(location)


def _segment_sequences(manifest: Manifest, store: str) -> frozenset[int]:
    segments = manifest.only([store]).segments.values()
    return frozenset(segment.sequence for group in segments for segment in group)


def _content(manifest: Manifest, store: str, data: Mapping[int, bytes]) -> Changes:
    rows_of: dict[str, dict[bytes, bytes]] = {}
    for (name, _), segment in catch_up(manifest.only([store]), None) or ():
        where = f"segment {segment.sequence} of store {store!r}"
        if segment.sequence not in data:
            raise StoreError(
                f"the log is damaged: {where} is missing from the checkpoint. Read a backup of the checkpoint instead"
            )
        rows = rows_of.setdefault(name, {})
        for key, value in decode(unpacked(data[segment.sequence], where), where):
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
    assert all(store_of(name) == store for name in rows_of)
    return {name: list(rows.items()) for name, rows in rows_of.items()}
