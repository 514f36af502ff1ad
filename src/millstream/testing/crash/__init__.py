"""The crash harness: kills an application repeatedly while it works, and compares its results with an oracle.

The application runs in a separate process against an embedded broker and receives input all the time. A seed determines which targets (the
program, the JVM of the driver or of an executor, a Python worker, the broker) are killed or stopped, and at which points of the stream. At
the end, the harness checks the output topic, read with ``read_committed``, the contents of the stores and the offsets of the group.
Nothing is simulated: processes are killed with SIGKILL and stopped with SIGSTOP.

For the command, see ``python -m millstream.testing.crash --help``. To run your own topology, see ``docs/how-to/test-with-crashes.md``.
"""

from millstream.testing.crash.app import App, Expected, Guarantee, Topics, tell_contents
from millstream.testing.crash.apps import APPS
from millstream.testing.crash.crash_report import Kill, Report, unspoiled
from millstream.testing.crash.harness import run_with_crashes
from millstream.testing.crash.journal import Findings, check_journals
from millstream.testing.crash.kill_plan import TARGETS, Target
from millstream.testing.crash.processes import CrashTestError

__all__ = [
    "APPS",
    "TARGETS",
    "App",
    "CrashTestError",
    "Expected",
    "Findings",
    "Guarantee",
    "Kill",
    "Report",
    "Target",
    "Topics",
    "check_journals",
    "run_with_crashes",
    "tell_contents",
    "unspoiled",
]
