"""The crash harness: an application is killed again and again while it works, and its results are compared with an oracle.

It runs as a process of its own against an embedded broker, is fed while it runs, and what is killed or stopped (the program, the JVM of
the driver or of an executor, a Python worker, the broker) and at which points of the stream comes from a seed. At the end
the output topic, read with ``read_committed``, the contents of the stores and the group's offsets are checked. Nothing
simulates anything: processes die by SIGKILL and stand by SIGSTOP.

``python -m penstock.testing.crash --help`` is the command; ``docs/how-to/test-with-crashes.md`` shows how to run a topology
of your own.
"""

from penstock.testing.crash.app import App, Expected, Guarantee, Topics, tell_contents
from penstock.testing.crash.apps import APPS
from penstock.testing.crash.harness import run_with_crashes
from penstock.testing.crash.journal import Findings, check_journals
from penstock.testing.crash.plan import TARGETS, Target
from penstock.testing.crash.processes import CrashTestError
from penstock.testing.crash.report import Kill, Report
from penstock.testing.crash.spoiled import unspoiled

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
