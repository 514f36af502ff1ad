"""Planned reads: the work of one Spark task of the source. The planner creates them, and executors carry them out."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql.datasource import InputPartition

from millstream.core.model.positions import Offsets
from millstream.core.ports import OffsetRange
from millstream.core.runtime.batch_plan import Initialization, WallClock
from millstream.core.runtime.remaining_inputs import TaskInput


@dataclass
class PlannedRead(InputPartition):
    """The work of one Spark task.

    Attributes:
        batch: The id of the micro-batch in chunk-row format.
        back: Empty ranges: where partitions now begin whose topics were recreated or have become shorter.
        ticks: Tasks that run without records.
        initialization: What these tasks do in the first micro-batch of a run. None in others.
        inputs: Tasks with their input facts.
        global_ends: The offsets of the topics of global stores that the micro-batch sees. None without global stores.
        times: Partition times at the beginning of the micro-batch, in ms since the epoch, where readers extract timestamps.
    """

    batch: str
    clock: WallClock
    ranges: list[OffsetRange] = field(default_factory=list)
    back: list[OffsetRange] = field(default_factory=list)
    ticks: list[str] = field(default_factory=list)
    initialization: Initialization | None = None
    inputs: list[tuple[str, TaskInput]] = field(default_factory=list)
    global_ends: Offsets | None = None
    times: Offsets = field(default_factory=dict)
    taps: tuple[str, ...] = ()
