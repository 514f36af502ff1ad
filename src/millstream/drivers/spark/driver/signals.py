"""Forwards signals under ``spark-submit``, where they arrive at the JVM that has started this program.

The JVM would stop Spark in the middle of a micro-batch. With this module it first waits for the end of the program, and the program
receives the SIGTERM that it would receive as ``python main.py``.

Rejected: a hook that calls this program. Py4J would listen for the call on a port without authentication.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from functools import cache
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext

_BEFORE_SPARK: Final = 1_000
"""Priority of the hook. Higher priorities run first. Spark stops its contexts at 50 and 40."""
_AT_MOST_S: Final = 3_600
"""The maximum wait for the program's end, in seconds."""
_POLL_S: Final = 0.2


def pass_on_signals() -> None:
    """Make the JVM of ``spark-submit`` forward its shutdown to this program and wait for the program's end.

    Does nothing for a JVM that this program has started.
    """
    context = SparkContext._active_spark_context
    if context is not None and "PYSPARK_GATEWAY_PORT" in os.environ:
        _pass_on_signals(context._jvm)


@cache
def _pass_on_signals(jvm: Any) -> None:
    hooks = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    hooks.addShutdownHook(
        _exit_waiter(jvm), _BEFORE_SPARK, _AT_MOST_S, jvm.java.util.concurrent.TimeUnit.SECONDS
    )
    threading.Thread(target=_watch, args=(hooks,), name="millstream-jvm", daemon=True).start()


def _exit_waiter(jvm: Any) -> Any:
    """Return a ``java.lang.Runnable`` that waits until this process has ended."""
    invoke, class_of = jvm.java.lang.invoke, jvm.java.lang.Class.forName
    ended = jvm.java.lang.ProcessHandle.of(os.getpid()).get().onExit()
    join = invoke.MethodHandles.publicLookup().bind(
        ended, "join", invoke.MethodType.methodType(class_of("java.lang.Object"))
    )
    return invoke.MethodHandleProxies.asInterfaceInstance(class_of("java.lang.Runnable"), join)


def _watch(hooks: Any) -> None:
    """Send this process a SIGTERM when the JVM is shutting down."""
    with suppress(OSError, Py4JError):  # the JVM was killed
        while not hooks.isShutdownInProgress():
            time.sleep(_POLL_S)
        os.kill(os.getpid(), signal.SIGTERM)
