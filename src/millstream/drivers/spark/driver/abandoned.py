"""The state that a micro-batch has left which was not completed, removed before it is run again.

``FileSystemBasedCheckpointFileManager``, which writes checkpoints on local disks, leaves a file that is there as it is: what a second
attempt writes under the same name is lost without a word. The query goes on with the state of the second attempt in memory, and the
files have that of the first. That is the same if a micro-batch does the same each time. With answers of asynchronous operators, or
anything else that differs, the next start would read changes of one attempt on top of another one's. So a start removes what
the first attempt has left, and this manager is used only where a query makes one attempt at a task.

Other file systems have Spark's default manager, which replaces files.
"""

from __future__ import annotations

import re
from typing import Final

from millstream.drivers.spark.driver.checkpoint import LocalFiles, numbers

_VERSION: Final = re.compile(r"\.*(\d+)(?:_[\w-]+)?\.(?:zip|changelog)(?:\..*)?")
"""Names a version of the state, its checksum, or temporary files of either."""


def remove_abandoned(files: LocalFiles) -> list[str]:
    """Remove the state of a micro-batch that was planned and not completed, from a checkpoint on a disk of this machine.

    Args:
        files: The checkpoint; no query may run on it.

    Returns:
        The paths that were removed, relative to the checkpoint.
    """
    planned = max(numbers(files.names("offsets")), default=-1)
    if planned < 0 or planned in numbers(files.names("commits")):
        return []
    removed = []
    for partition in numbers(files.names("state/0")):
        for name in files.names(f"state/0/{partition}"):
            match, path = _VERSION.fullmatch(name), f"state/0/{partition}/{name}"
            if match is not None and int(match[1]) == planned + 1:
                files.local(path).unlink(missing_ok=True)
                removed.append(path)
    return sorted(removed)
