"""The cache: files that can be downloaded or created again, kept for the user's next program."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """Return the directory for files that Millstream has downloaded or created.

    Returns:
        ``$MILLSTREAM_CACHE_DIR``, else ``$XDG_CACHE_HOME/millstream``, else ``~/.cache/millstream``. It may not exist yet.
    """
    own = os.environ.get("MILLSTREAM_CACHE_DIR")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "millstream"
