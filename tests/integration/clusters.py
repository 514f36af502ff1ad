"""A standalone Spark cluster on the loopback interface: a master and workers, which Spark treats as separate hosts.

The programs come with PySpark. The cluster authenticates with a secret, because Kafka's passwords pass through it. Workers can
import Millstream, but no modules of the tests.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark
import pytest

import millstream as ms

_HOME = Path(pyspark.__file__).parent
_START_S = 180.0
_END_S = 20.0
_POLL_S = 0.1
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")
_LAUNCHED = re.compile(r"Asked to launch executor \S+/(\d+)")


class Daemon:
    """A master, a worker or a submitted program, with its child processes: executors die with their worker, as with their host."""

    def __init__(self, log: Path, environment: dict[str, str], *command: str) -> None:
        self.log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [str(_HOME / "bin" / command[0]), *command[1:]],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait until its log has a line that matches."""
        deadline = time.monotonic() + _START_S
        while (found := pattern.search(self.log.read_text(errors="replace"))) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{self.log.name} did not start: {self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(_POLL_S)
        return found

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def launched_executor(self) -> str:
        """Wait until a worker has started an executor; return the last one, because earlier ones belong to other applications."""
        self.wait_for(_LAUNCHED)
        return str(_LAUNCHED.findall(self.log.read_text(errors="replace"))[-1])

    def terminate(self, within_s: float) -> int:
        """Send it a SIGTERM, and wait for its end; return its exit code."""
        self._process.terminate()
        return self._process.wait(within_s)

    def kill(self) -> None:
        """Kill it and its child processes."""
        if self.runs:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_END_S)


class SparkCluster:
    """A master and two workers of one core each."""

    def __init__(self, home: Path, **more: str) -> None:
        """Write the configuration; `more` is added to the environment of every process."""
        self.home = home
        self.secret = secrets.token_hex(16)
        self.workers: list[Daemon] = []
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
        self._environment |= {
            "PYTHONPATH": str(Path(ms.__file__).parents[1]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            **more,
            "SPARK_CONF_DIR": str(home),
        }
        (home / "spark-defaults.conf").touch(mode=0o600)
        (home / "spark-defaults.conf").write_text(
            f"spark.authenticate true\nspark.authenticate.secret {self.secret}\nspark.io.encryption.enabled true\n"
            "spark.executor.extraJavaOptions -XX:+UseSerialGC\nspark.driver.extraJavaOptions -XX:+UseSerialGC -XX:TieredStopAtLevel=1\n"
            "spark.executor.memory 512m\nspark.executor.cores 1\nspark.driver.memory 512m\n"
            "spark.ui.enabled false\nspark.driver.host 127.0.0.1\nspark.driver.bindAddress 127.0.0.1\n"
        )

    def __enter__(self) -> Self:
        try:
            where = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            self._master = self._start(
                "master", "spark-class", "org.apache.spark.deploy.master.Master", *where
            )
            self.url = self._master.wait_for(_MASTER_URL)[1]
            for _ in range(2):
                self.add_worker()
            for worker in self.workers:
                worker.wait_for(_REGISTERED)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill all processes of the cluster."""
        for daemon in [*self.workers, *filter(None, [getattr(self, "_master", None)])]:
            daemon.kill()

    def add_worker(self) -> Daemon:
        """Start another worker."""
        name = f"worker-{len(self.workers)}"
        limits = ("--cores", "1", "--memory", "1g", "--work-dir", str(self.home / name))
        where = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        command = ("spark-class", "org.apache.spark.deploy.worker.Worker", *where, *limits, self.url)
        worker = self._start(name, *command)
        self.workers.append(worker)
        return worker

    def worker_of(self, executor: str) -> Daemon:
        """Return the worker on which an executor of the running application runs."""
        return next(
            worker for worker in self.workers if worker.runs and worker.launched_executor() == executor
        )

    def submit(self, name: str, *arguments: str) -> Daemon:
        """Run a program by ``spark-submit``."""
        command = ("spark-submit", "--master", self.url, "--deploy-mode", "client", *arguments)
        return self._start(name, *command)

    def python(self, *arguments: str) -> subprocess.Popen[str]:
        """Run a program."""
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.home,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _start(self, name: str, *command: str) -> Daemon:
        return Daemon(self.home / f"{name}.log", self._environment, *command)


class ClusterOfHosts(SparkCluster):
    """A cluster whose workers see different host names, and have separate directories for local copies.

    Each worker has its own namespaces, so the kernel must let this user create them. All processes of a host die with its worker.

    Args:
        copies: The directory of the application's local copies; each host mounts its own directory there.
    """

    _ENTER = 'mkdir -p "$1" && mount --bind "$1" "$2" && hostname "$0" && shift 2 && exec "$@"'
    _NAMESPACES = (
        "unshare",
        "--map-root-user",
        "--pid",
        "--mount-proc",
        "--uts",
        "--fork",
        "--kill-child",
        "--",
    )

    def __init__(self, home: Path, copies: Path) -> None:
        super().__init__(home)
        self._copies = copies
        copies.mkdir(parents=True)

    @classmethod
    def possible(cls) -> bool:
        """Return whether this user may create such namespaces."""
        if not shutil.which(cls._NAMESPACES[0]):
            return False
        tried = subprocess.run([*cls._NAMESPACES, "hostname", "tried"], capture_output=True, check=False)
        return tried.returncode == 0

    def host(self, worker: int) -> str:
        """Return the host name that a worker sees."""
        return f"host-{worker}"

    def _start(self, name: str, *command: str) -> Daemon:
        if not name.startswith("worker-"):
            return super()._start(name, *command)
        host = self.host(len(self.workers))
        directories = [str(self.home / f"copies-{host}"), str(self._copies)]
        entered = [
            shutil.which(self._NAMESPACES[0]) or "",
            *self._NAMESPACES[1:],
            "sh",
            "-c",
            self._ENTER,
            host,
            *directories,
        ]
        return super()._start(name, *entered, str(_HOME / "bin" / command[0]), *command[1:])
