"""When Spark has committed the micro-batches of an application, from its checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt


def committed_batches(checkpoint: Path) -> npt.NDArray[np.int64]:
    """Return when the micro-batches were committed that Spark has put down in its checkpoint, in order, microseconds since the epoch.

    The group's offsets are committed before Spark puts down the micro-batch. One that is killed in between is done again.
    """
    files = (file for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
    return np.sort(np.array([file.stat().st_mtime_ns // 1000 for file in files], np.int64))
