"""Checks of a cluster's executors: compares Python and packages with the Spark driver's, and checks ports and directories.

One barrier stage with one Spark task per core reaches all executors at the same time. Functions of plain values in this module judge the
results.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING, Final

from millstream.edge.cli.doctor.finding import Finding, Inquiry
from millstream.edge.cli.doctor.machine import MINIMUM_DISK, module_of, requirements, satisfies
from millstream.edge.cli.doctor.probe import Facts, Wanted

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_SAME: Final = ("millstream", "pyspark", "pyarrow")
"""Packages that must have the Spark driver's version, because they exchange data with it."""
_EXECUTORS_TIMEOUT_S: Final = 60.0
_SETTLED_S: Final = 5.0
_POLL_S: Final = 0.2
_CONF: Final = {
    "spark.python.daemon.module": "pyspark.daemon",  # Millstream, with its own daemon, may be missing
    "spark.ui.enabled": "false",
}


def check_executors(inquiry: Inquiry) -> list[Finding]:
    """Check every executor of a master; skipped without a master."""
    from millstream.drivers.spark.driver.launch import is_local
    from millstream.drivers.spark.driver.spark_session import session_for

    master = inquiry.master
    if master is None:
        return []
    if is_local(master):
        return [Finding("executors", True, f"{master} runs on this machine, which is checked above")]
    try:
        session = session_for("millstream-doctor", master, {**inquiry.spark, **_CONF})
        try:
            return _probe_findings(session, inquiry)
        finally:
            session.stop()
    except Exception as error:  # errors of Spark, Py4J and Python have only a text in common
        return [refused_finding(master, str(error))]


def refused_finding(master: str, error: str) -> Finding:
    """Judge Spark's error when no job runs on a cluster."""
    output_lines = [
        line.strip() for line in error.splitlines() if line.strip() and not line.lstrip().startswith("at ")
    ]
    signs = ("PYTHON_VERSION_MISMATCH", "Cannot run program", "ModuleNotFoundError", "Caused by")
    why = next(
        (line for sign in signs for line in output_lines if sign in line),
        output_lines[0] if output_lines else "no reason given",
    )
    fix = (
        "set PYSPARK_PYTHON to a Python of the driver's minor version at the same path on every host; check the log of the master "
        "and, in the work directory of a worker, stderr of the executor"
    )
    return Finding("executors", False, f"no Spark job could run on {master}: {why}", fix)


def _probe_findings(session: SparkSession, inquiry: Inquiry) -> list[Finding]:
    from pyspark import cloudpickle

    from millstream.drivers.spark import executor_id
    from millstream.edge.cli.doctor import probe

    context = session.sparkContext
    if not (cores := _cores(context)):
        fix = "add workers, or free cores and memory: another application may have them (spark.cores.max limits an application)"
        return [
            Finding(
                "executors",
                False,
                f"{inquiry.master} provided no executors within {_EXECUTORS_TIMEOUT_S:.0f} s",
                fix,
            )
        ]
    limits = dict(requirements(_required()))
    wanted, look, named = _probe_request(inquiry, limits), probe.look, executor_id.executor_in
    by_value = (probe, executor_id)
    for module in by_value:
        cloudpickle.register_pickle_by_value(module)
    try:

        def looked(_: Iterable[int]) -> Iterator[Facts]:
            yield look(wanted, named)

        found = context.parallelize(range(cores), cores).barrier().mapPartitions(looked).collect()
    finally:
        for module in by_value:
            cloudpickle.unregister_pickle_by_value(module)
    by_executor = {(facts["host"], facts["executor"]): facts for facts in found}
    return [
        finding
        for _, facts in sorted(by_executor.items())
        for finding in executor_findings(facts, limits, _driver_versions())
    ]


def _cores(context: SparkContext) -> int:
    """Wait until no more executors register; return the number of slots.

    A barrier stage with more tasks than slots never begins. ``defaultParallelism`` is not suitable, because it is always at least 2.
    """
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    end, settled, count = time.monotonic() + _EXECUTORS_TIMEOUT_S, 0.0, 0
    while time.monotonic() < end and not (count and time.monotonic() > settled):
        now: int = scala.maxNumConcurrentTasks(profile)
        if now != count:
            count, settled = now, time.monotonic() + _SETTLED_S
        time.sleep(_POLL_S)
    return count


def _required() -> Sequence[str]:
    try:
        return requires("millstream") or ()
    except PackageNotFoundError:
        return ()


def _driver_versions() -> dict[str, str]:
    """Return the Spark driver's versions of Python and of packages that must be equal."""
    found = {"python": platform.python_version()}
    for package in _SAME:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _probe_request(inquiry: Inquiry, packages: Iterable[str]) -> Wanted:
    modules = {name: module_of(name) for name in sorted({*_SAME, *packages})}
    servers = (inquiry.bootstrap_servers or "").split(",")
    addresses = [address for address in map(_address, servers) if address is not None]
    return Wanted(modules, addresses, [str(inquiry.state_dir)], inquiry.timeout_s)


def _address(server: str) -> tuple[str, int] | None:
    """Return host and port; None for an invalid address, which the broker check reports."""
    host, _, port = server.strip().rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdigit() else None


def executor_findings(facts: Facts, limits: dict[str, str], own: dict[str, str]) -> list[Finding]:
    """Return one finding for each problem of an executor; without problems, one finding that describes it."""
    name = f"executor {facts['executor']} on {facts['host']}"
    wrong = list(_wrong_packages(name, facts, limits, own))
    for address, why in facts["unreachable"].items():
        fix = "open that port from this host to the broker (firewall, network policy), and let it resolve the name"
        wrong.append(Finding(name, False, f"the broker {address} cannot be reached: {why}", fix))
    for directory, (why, free) in facts["directories"].items():
        problem = why or (f"has {free / 2**30:.1f} GiB free" if free < MINIMUM_DISK else "")
        if problem:
            fix = f"give the user of the executor its own directory with {MINIMUM_DISK >> 30} GiB (chmod 700), or choose another state_dir"
            wrong.append(Finding(name, False, f"{directory} {problem}", fix))
    free = min((free for _, free in facts["directories"].values()), default=0)
    versions = ", ".join(f"{package} {facts['versions'][package][0]}" for package in _SAME)
    detail = f"Python {facts['python']} ({facts['interpreter']}), {versions}, {free / 2**30:.1f} GiB free"
    return wrong or [Finding(name, True, detail)]


def _wrong_packages(
    name: str, facts: Facts, limits: dict[str, str], own: dict[str, str]
) -> Iterator[Finding]:
    if facts["python"].split(".")[:2] != own["python"].split(".")[:2]:
        fix = "set PYSPARK_PYTHON to a Python of the same minor version on every host"
        yield Finding(name, False, f"Python {facts['python']}, but the driver has {own['python']}", fix)
    for package, (found, why) in facts["versions"].items():
        wanted = own.get(package)
        other = wanted is not None and found != wanted
        problem = why or (f"{found}, but the driver has {wanted}" if other else "")
        if not problem and not satisfies(found, limits.get(package, "")):
            problem = f"{found} (needs {limits[package]})"
        if problem:
            what = f"{package}=={wanted}" if wanted else f"{package}{limits.get(package, '')}"
            yield Finding(
                name,
                False,
                f"{package}: {problem}",
                f"on that host: {facts['interpreter']} -m pip install '{what}'",
            )
