"""Commit times of Spark's micro-batches, from the checkpoint of an application."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt


def committed_batches(checkpoint: Path) -> npt.NDArray[np.int64]:
    """Return the commit times of the micro-batches in Spark's checkpoint, in order, in microseconds since the epoch.

    The offsets of the group are committed before Spark writes the commit. A micro-batch that is killed in between is repeated.
    """
    files = (file for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
    return np.sort(np.array([file.stat().st_mtime_ns // 1000 for file in files], np.int64))
