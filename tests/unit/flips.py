"""Flips bits in files. ``MILLSTREAM_TEST_FLIPS`` is the number of flips of a test, for example 1000 in a long run."""

from __future__ import annotations

import os
import random
from pathlib import Path

FLIPS = int(os.environ.get("MILLSTREAM_TEST_FLIPS", "30"))


def flip(path: Path, chance: random.Random) -> None:
    """Flip a bit of a file that is not empty."""
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
