"""What the benchmark ran on: enough to judge figures, nothing that names the machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from importlib.metadata import version

import psutil

from bench.processes import ROOT
from millstream.testing._java import find_java
from millstream.testing.kafka import KAFKA_VERSION


@dataclass(frozen=True)
class Machine:
    """A machine and the versions that ran on it."""

    system: str
    cores: int
    memory_gib: float
    python: str
    java: str
    spark: str
    kafka: str
    millstream: str
    commit: str

    def __str__(self) -> str:
        return (
            f"{self.cores} cores, {self.memory_gib:g} GiB, {self.system}, Python {self.python}, Java {self.java}, "
            f"Spark {self.spark}, Kafka and Kafka Streams {self.kafka}"
        )


def this_machine() -> Machine:
    """Describe the machine that this runs on; cores are those this process may use."""
    completed = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=False)
    java = re.search(r'version "([^"]+)"', completed.stderr + completed.stdout)
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        python=platform.python_version(),
        java=java.group(1) if java else "unknown",
        spark=version("pyspark"),
        kafka=KAFKA_VERSION,
        millstream=version("millstream"),
        commit=_commit(),
    )


def _commit() -> str:
    """Return the commit that is measured; with a plus sign if files have been changed since."""
    completed = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"],
        capture_output=True,
        text=True,
        check=False,
    )
    return completed.stdout.strip() or "unknown"
