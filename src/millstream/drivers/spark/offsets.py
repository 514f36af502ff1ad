"""Offsets of the source, as Spark keeps them in the checkpoint: how far a query has come, and what it was then.

An offset is JSON:

    {"topics": {topic: {partition: offset}}, "checkpoint": id, "batch": n, "run": id, "tick": n, "now_ms": wall clock,
     "ahead_ms": ms,
     "stores": {store: fingerprint}, "internal": {repartition topic: partitions},
     "unfinished": [store], "parts": {number: [topics, stores, tasks]}, "topic_ids": {topic: id},
     "routing": {"routes": {topic: [tasks, by]}, "stores": {store: [topic]}}, "woken": [task], "inputs": facts,
     "times": {topic: {partition: ms}}, "origins": [[n, {topic: {partition: offset}}]],
     "begin": what the first batch of a run is told}

* ``checkpoint`` is an id made before the first offset, ``batch`` grows with each planned batch: together they are the id of a
  micro-batch, by which exactly-once delivery knows a batch it has already delivered.
* ``run`` is the id of the application's run that planned the batch: it tells batches of two copies of a checkpoint apart.
* ``tick`` grows when tasks are to take part in a batch, with or without new records: all of them in the first batch of each run, which
  initialises all tasks, brings their local copies up to date and connects the workers, and for wall-clock punctuation.
* ``woken`` names the tasks that wall-clock punctuation is due for; without it a grown ``tick`` is for every task.
* ``inputs`` is what is known of inputs that are waited for (see ``millstream.drivers.spark.inputs``), if there are any.
* ``times`` are the partition times with which the batch begins, where readers need them (see ``millstream.drivers.spark.times``).
* ``origins`` says where the micro-batches began, in the topics in front of Spark's shuffle, that records may be unfinished of; the batch
  itself is the last of them (see ``millstream.core.runtime.origins``).
* ``now_ms`` is the wall clock of the batch: it lies in the checkpoint, so that a batch that is run again sees the same time.
* ``ahead_ms`` is by how much the application's clock was ahead of that of the planner's host, if it was.
* ``stores`` and ``internal`` are what a later topology is checked against; ``unfinished`` names the stores that hold unfinished
  records of asynchronous operators, which must not go without a word; by ``parts`` it finds its state (see
  ``millstream.core.topology.evolution``), and ``topic_ids`` tell a topic that was made again.
* ``routing`` is how records reach the tasks that have state (see ``millstream.core.topology.routing``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.core.model.positions import Offsets, positions_from_json, positions_to_json
from millstream.core.ports import BatchId
from millstream.drivers.spark.clock import Reading
from millstream.drivers.spark.spec import TopologySpec


def offset_after(
    start: Mapping[str, Any], positions: Offsets, tick: int, now: Reading, topology: TopologySpec
) -> dict[str, Any]:
    """Return the offset that follows ``start``: a batch number further, at other positions."""
    return {
        "topics": positions_to_json(positions),
        "checkpoint": batch_id(start).checkpoint,
        "batch": batch_id(start).number + 1,
        "tick": tick,
        "now_ms": now.now_ms,
        **({"ahead_ms": now.ahead_ms} if now.ahead_ms else {}),
        "stores": topology.plan.store_fingerprints(),
        "internal": topology.internal_partitions(),
        **_unfinished(topology),
        **topology.lineage.to_json(),
    }


def _unfinished(topology: TopologySpec) -> dict[str, Any]:
    keepers = topology.plan.keepers
    return {"unfinished": sorted(keepers)} if keepers else {}


def woken(offset: dict[str, Any], tasks: Sequence[str] | None) -> dict[str, Any]:
    """Return the offset of a batch that wakes tasks, if there are any to wake."""
    return {**offset, "woken": list(tasks)} if tasks else offset


def batch_id(offset: Mapping[str, Any]) -> BatchId:
    """Return the id of the micro-batch that ends at an offset."""
    return BatchId(offset.get("checkpoint", ""), offset.get("batch", 0), offset.get("run", ""))


def positions_of(offset: Mapping[str, Any]) -> Offsets:
    """Return how far each partition is read at an offset."""
    return positions_from_json(offset["topics"])
