"""Rescale: changes the number of Spark partitions of an existing application.

A checkpoint keeps its initial number of shuffle partitions, because Spark's state is stored in that many parts. To move the state, Spark
has an offline operation: it runs a micro-batch without records, which writes the last state with another number of parts. Tasks,
grouping keys, segments and local copies do not change; only the part that contains a task changes.

``millstream rescale`` rescales on demand. A start rescales if the setting ``shuffle_partitions`` differs from the checkpoint's number,
unless ``on_changed_shuffle_partitions`` is ``keep`` or ``fail``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pyspark.sql import SparkSession

from millstream.core.model.errors import SettingsError
from millstream.drivers.spark.driver import checkpoint
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress

log = logging.getLogger("millstream.application")

OnChanged = Literal["rescale", "keep", "fail"]
"""What a start does if ``shuffle_partitions`` differs from the checkpoint's number."""


def decided(
    progress: CheckpointProgress | None, wanted: int | None, policy: OnChanged
) -> Literal["nothing", "rescale", "later"]:
    """Decide whether a start rescales.

    Returns:
        ``rescale``: before the query starts; ``later``: after the interrupted micro-batch is complete; or ``nothing``.

    Raises:
        SettingsError: If the numbers differ and the policy is to fail.
    """
    if progress is None:
        return "nothing"
    if progress.rescaling:
        return "rescale"
    if wanted in (None, progress.shuffle_partitions) or policy == "keep":
        return "nothing"
    if policy == "fail":
        raise SettingsError(
            f"the checkpoint has {progress.shuffle_partitions} shuffle partitions, but shuffle_partitions={wanted} is "
            f"set. Set it to {progress.shuffle_partitions} or leave it out, move the state with `millstream rescale "
            f"--partitions {wanted}`, or set on_changed_shuffle_partitions='rescale' to have it moved at the start"
        )
    return "rescale" if progress.committed else "later"


def at_start(
    progress: CheckpointProgress | None,
    wanted: int | None,
    policy: OnChanged,
    location: str,
    session: Callable[[], SparkSession],
) -> bool:
    """Rescale a checkpoint, if the settings require it.

    Returns:
        Whether to rescale later, after the interrupted micro-batch is complete.
    """
    todo = decided(progress, wanted, policy)
    if todo == "nothing" or progress is None:
        if progress is not None and wanted not in (None, progress.shuffle_partitions):
            log.warning(
                "the checkpoint keeps its %d shuffle partitions, so shuffle_partitions=%s has no effect",
                progress.shuffle_partitions,
                wanted,
            )
        return False
    if todo == "later":
        log.warning(
            "the state will be moved from %d to %s partitions when the interrupted micro-batch %d is complete",
            progress.shuffle_partitions,
            wanted,
            progress.batch,
        )
        return True
    if progress.rescaling:
        log.warning("completing an interrupted rescale to %d partitions", progress.shuffle_partitions)
        moved(session(), location, progress.shuffle_partitions)
        return at_start(replace(progress, committed=True, rescaling=False), wanted, policy, location, session)
    assert wanted is not None
    moved(session(), location, wanted)
    return False


def moved(session: SparkSession, location: str, partitions: int) -> float:
    """Rescale the state, log the change, and return the duration in seconds."""
    started = time.monotonic()
    checkpoint.rescale(session, location, partitions)
    seconds = time.monotonic() - started
    log.warning("moved the state of the checkpoint to %d partitions in %.1f s", partitions, seconds)
    return seconds
