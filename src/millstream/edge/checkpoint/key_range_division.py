"""Division among key ranges: a start gives an application with existing state more key ranges than before.

The state of each task is divided before the query starts; the first micro-batch moves the shares into Spark's state. A micro-batch that
was planned but not completed belongs to the undivided tasks, so it must first be completed without the division.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import SparkSession

from millstream.core.model.errors import CheckpointError, IncompatibleTopologyError
from millstream.core.model.ids import TaskId
from millstream.core.runtime.batch_plan import BatchPlan, DividedState
from millstream.core.state.division.entry_keys import entry_keys
from millstream.core.state.division.shares import Division
from millstream.core.topology.layout import Layout
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress, Files
from millstream.drivers.spark.driver.state_division import DividedTask, divide, remove_shares
from millstream.drivers.spark.share_files import DIRECTORY
from millstream.edge.checkpoint.continuity import Continuity
from millstream.edge.checkpoint.disk_space import free_space

log = logging.getLogger("millstream.application")


@dataclass(frozen=True)
class KeyRangeDivision:
    """The division at a start, if partitions have more key ranges than in the checkpoint.

    Attributes:
        progress: The progress of the checkpoint; None without one.
    """

    progress: CheckpointProgress | None
    continuity: Continuity
    layout: Layout
    files: Files

    @property
    def needed(self) -> bool:
        return bool(self._divisions)

    @cached_property
    def _divisions(self) -> dict[int, Division]:
        if self.progress is None or self.progress.last_complete < 0:
            return {}
        return self.continuity.divisions()

    def check(self) -> None:
        """Check that the state can be divided now.

        Raises:
            CheckpointError: If the checkpoint is neither in a directory of this host nor in one that all hosts share.
            IncompatibleTopologyError: If a micro-batch must be completed first.
        """
        if not self.needed:
            return
        assert self.progress is not None
        if self.files.local(DIRECTORY) is None:
            raise CheckpointError(
                "parallelism= needs more key ranges than the checkpoint has, and the state can be divided only if the checkpoint is in "
                "a directory of this host, or in one that all hosts share. Leave parallelism= as it was; or start over with it, after "
                "`millstream reset` or under another application id"
            )
        if not self.progress.committed:
            raise IncompatibleTopologyError(
                "parallelism= needs more key ranges than the checkpoint has, but its last micro-batch, "
                f"{self.progress.batch}, was interrupted, and must be completed by the tasks that it was planned for. "
                "Start the application with parallelism= as it was, stop it once it is running, and start it again with "
                "the new value"
            )

    def divide(self, session: SparkSession, location: str) -> DividedState:
        """Divide the state.

        Raises:
            CheckpointError: If the shares cannot be written.
        """
        directory = self.files.local(DIRECTORY)
        assert directory is not None
        assert self.progress is not None
        started = time.monotonic()
        tasks = [task for task in self.layout.tasks if task.subtopology in self._divisions]
        checkpoint = location, self.progress.last_complete
        try:
            divided = divide(session, checkpoint, directory, self._tasks(), tasks)
        except (ConnectionError, TimeoutError):  # of the connection to Spark
            raise
        except OSError as error:
            with suppress(OSError):
                remove_shares(directory, None)
            raise CheckpointError(
                f"the state cannot be divided among more key ranges: {str(directory)!r} cannot be written ({error.strerror or error}); its disk has "
                f"{free_space(str(directory))}. The checkpoint is unchanged: free some space, or leave parallelism= as it was, and start again"
            ) from error
        seconds = time.monotonic() - started
        log.warning("divided the state among %d tasks of key ranges in %.1f s", len(tasks), seconds)
        return divided

    def _tasks(self) -> dict[TaskId, DividedTask]:
        """Return the tasks to divide, including tasks without state."""
        plan, found = self.continuity.plan, {}
        for number, division in self._divisions.items():
            keys = entry_keys(plan, plan.subtopologies[number])
            for partition in range(self.continuity.remembered.parts[number].tasks):
                task = TaskId(number, partition)
                found[task] = DividedTask(task, division, keys)
        return found

    def remove_old_shares(self) -> None:
        """Delete the shares of earlier divisions, except those that an uncompleted micro-batch still needs."""
        directory, progress = self.files.local(DIRECTORY), self.progress
        if directory is None or progress is None:
            return
        begin = None if progress.committed else BatchPlan.from_json(progress.planned).initialization
        needed = None if begin is None or begin.divided is None else begin.divided.name
        remove_shares(directory, needed)
