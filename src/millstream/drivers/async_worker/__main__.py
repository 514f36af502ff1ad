"""``python -m millstream.drivers.async_worker SOCKET EXECUTOR IDLE_SECONDS LOG``: the command that ``AsyncWorkerAddress`` starts."""

from __future__ import annotations

import sys
from pathlib import Path

from millstream.drivers.async_worker.server import run

if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
