"""The crash harness: an application is killed again and again while it works, and its results are compared with an oracle.

It runs as a process of its own against an embedded broker, is fed while it runs, and what is killed or stopped (the program, the JVM of
the driver or of an executor, a Python worker, the broker) and at which points of the stream comes from a seed. At the end
the output topic, read with ``read_committed``, the contents of the stores and the group's offsets are checked. Nothing
simulates anything: processes die by SIGKILL and stand by SIGSTOP.

``python -m millstream.testing.crash --help`` is the command; ``docs/how-to/test-with-crashes.md`` shows how to run a topology
of your own.
"""

from millstream.testing.crash.app import App, Expected, Guarantee, Topics, tell_contents
from millstream.testing.crash.apps import APPS
from millstream.testing.crash.harness import run_with_crashes
from millstream.testing.crash.journal import Findings, check_journals
from millstream.testing.crash.plan import TARGETS, Target
from millstream.testing.crash.processes import CrashTestError
from millstream.testing.crash.report import Kill, Report
from millstream.testing.crash.spoiled import unspoiled

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
