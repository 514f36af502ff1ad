"""Planned reads: what one Spark task of the source reads. The planner makes them, executors carry them out."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql.datasource import InputPartition

from millstream.core.model.positions import Offsets
from millstream.core.ports import OffsetRange
from millstream.core.runtime.batch_plan import Initialization, WallClock
from millstream.core.runtime.remaining_inputs import TaskInput


@dataclass
class PlannedRead(InputPartition):
    """What one Spark task reads.

    Attributes:
        batch: The id of the micro-batch, as chunk rows have it.
        ticks: Tasks that run without records.
        initialization: What these tasks do in the first micro-batch of a run; None in others.
        inputs: Tasks, and what is known of their inputs.
        global_ends: The offsets of the topics of global stores that the micro-batch sees; None without global stores.
        times: Partition times at the beginning of the micro-batch, ms since the epoch, where readers extract timestamps.
        taps: Nodes whose records are sampled.
    """

    batch: str
    clock: WallClock
    ranges: list[OffsetRange] = field(default_factory=list)
    ticks: list[str] = field(default_factory=list)
    initialization: Initialization | None = None
    inputs: list[tuple[str, TaskInput]] = field(default_factory=list)
    global_ends: Offsets | None = None
    times: Offsets = field(default_factory=dict)
    taps: tuple[str, ...] = ()
