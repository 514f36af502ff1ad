"""``python -m millstream.drivers.station SOCKET EXECUTOR IDLE_SECONDS LOG``: what ``StationAddress`` starts."""

from __future__ import annotations

import sys
from pathlib import Path

from millstream.drivers.station.server import run

if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
