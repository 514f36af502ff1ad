"""The command line of the crash harness: ``python -m millstream.testing.crash``."""

from __future__ import annotations

import sys

from millstream.testing.crash.crash_command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
