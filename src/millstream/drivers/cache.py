"""The cache: what can be downloaded or made again, kept for the next program of this user."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """Return the directory for what Millstream has downloaded or made.

    Returns:
        ``$MILLSTREAM_CACHE_DIR``, else ``$XDG_CACHE_HOME/millstream``, else ``~/.cache/millstream``. It may not exist yet.
    """
    own = os.environ.get("MILLSTREAM_CACHE_DIR")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "millstream"
