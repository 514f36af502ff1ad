"""Checks of this machine: Python, Java, packages, memory, disk, LMDB, loopback.

Each check imports the packages that it needs, because they may be missing.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from millstream.core.model.errors import MillstreamError
from millstream.core.ports import Version
from millstream.edge.cli.doctor.finding import Finding, Inquiry
from millstream.edge.cli.doctor.probe import existing_part, imported, try_writing

MINIMUM_PYTHON = (3, 11)
MINIMUM_MEMORY = 2 << 30
MINIMUM_DISK = 1 << 30

_MODULES = {"protobuf": "google.protobuf"}  # packages whose module has a different name
_LOOPBACK = "127.0.0.1"


def check_python(_: Inquiry) -> Finding:
    return python_finding(sys.version_info[:3])


def python_finding(found: tuple[int, ...]) -> Finding:
    shown = ".".join(map(str, found))
    wanted = ".".join(map(str, MINIMUM_PYTHON))
    return Finding(
        "Python", found >= MINIMUM_PYTHON, shown, f"create the environment with Python {wanted} or newer"
    )


def check_java(_: Inquiry) -> Finding:
    from millstream.drivers.java import ADVICE
    from millstream.testing._java import find_java

    try:
        java = find_java()
    except MillstreamError as error:
        return Finding("Java", False, str(error).removesuffix(f". {ADVICE}"), ADVICE)
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    lines = (done.stderr + done.stdout).splitlines()  # options in the environment are printed first
    shown = next((line for line in lines if "version" in line), "unknown version")
    return Finding("Java", True, f"{shown} ({java})")


def check_packages(_: Inquiry) -> list[Finding]:
    try:
        wanted = requires("millstream") or ()
    except PackageNotFoundError:
        return [
            Finding(
                "millstream",
                False,
                "not installed, only importable",
                f"{sys.executable} -m pip install millstream",
            )
        ]
    return [package_finding(name, limits) for name, limits in requirements(wanted)]


def requirements(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return the packages that are required to run on Spark, with their version limits; other extras are skipped.

    Example:
        >>> requirements(["lmdb>=1.6", "pandas>=2.2; extra == 'spark'", "typer; extra == 'cli'", "x; python_version < '3'"])
        [('lmdb', '>=1.6'), ('pandas', '>=2.2')]
    """
    required = [Requirement(line) for line in lines]
    applying = [
        requirement
        for requirement in required
        if requirement.marker is None or requirement.marker.evaluate({"extra": "spark"})
    ]
    return [(requirement.name, str(requirement.specifier)) for requirement in applying]


def package_finding(name: str, limits: str) -> Finding:
    fix = f"{sys.executable} -m pip install '{name}{limits}'"
    found, why = imported(name, module_of(name))
    if why:
        return Finding(name, False, why, f"{fix} --force-reinstall" if found else fix)
    return Finding(name, satisfies(found, limits), f"{found}{f' (needs {limits})' if limits else ''}", fix)


def module_of(package: str) -> str:
    return _MODULES.get(package, package.replace("-", "_"))


def satisfies(found: str, limits: str) -> bool:
    """Return whether a version is within limits; False if it cannot be compared.

    Example:
        >>> satisfies("2.3.3", "<3,>=2.2"), satisfies("3.0.0", "<3,>=2.2"), satisfies("2.3.1", "~=2.2,!=2.3.1")
        (True, False, False)
    """
    try:
        return SpecifierSet(limits).contains(found, prereleases=True)
    except InvalidVersion:
        return not limits


def check_memory(_: Inquiry) -> Finding:
    return memory_finding(available_memory())


def memory_finding(available: int | None) -> Finding:
    """Judge the available memory, bytes; None if unknown."""
    if available is None:
        return Finding("memory", True, "this system does not report how much is available")
    fix = (
        f"end other programs or give the machine or container {MINIMUM_MEMORY >> 30} GiB; less is possible with "
        "spark={'spark.driver.memory': '1g'}"
    )
    return Finding("memory", available >= MINIMUM_MEMORY, f"{available / 2**30:.1f} GiB available", fix)


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the memory available to new processes, bytes: the kernel's figure or, if less, the rest of the container's limit."""
    known = []
    meminfo = root / "proc/meminfo"
    if meminfo.exists():
        found = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo.read_text(), re.MULTILINE)
        known += [int(found.group(1)) * 1024] if found else []
    limit, used = root / "sys/fs/cgroup/memory.max", root / "sys/fs/cgroup/memory.current"
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        known.append(int(limit.read_text()) - int(used.read_text()))
    return min(known, default=None)


def check_disk(inquiry: Inquiry) -> Finding:
    why, free = try_writing(inquiry.state_dir)
    fix = "choose another directory: state_dir=... or the environment variable MILLSTREAM_STATE_DIR"
    if why:
        return Finding("state_dir", False, f"{inquiry.state_dir} {why}", fix)
    return disk_finding(inquiry.state_dir, free)


def disk_finding(directory: Path, free: int) -> Finding:
    """Judge the free space, bytes, for a directory that may not exist yet."""
    fix = "free some space, or choose another directory: state_dir=... or the environment variable MILLSTREAM_STATE_DIR"
    detail = f"{directory} can be written, {free / 2**30:.1f} GiB free"
    return Finding("state_dir", free >= MINIMUM_DISK, detail, fix)


def check_lmdb_file(inquiry: Inquiry) -> Finding:
    """Check that LMDB, which maps a large sparse file, can open a local copy in the state directory."""
    from millstream.drivers.lmdb import open_local_copy

    fix = "use a local disk for state_dir (no network file system), and lift limits of address space (ulimit -v unlimited)"
    try:
        with tempfile.TemporaryDirectory(
            prefix=".millstream-doctor-", dir=existing_part(inquiry.state_dir)
        ) as directory:
            copy = open_local_copy(directory)
            copy.apply({"store": [(b"key", b"value")]}, Version(1, "doctor"))
            found = copy.version()
    except (OSError, MillstreamError) as error:
        return Finding("LMDB file", False, str(error), fix)
    return Finding(
        "LMDB file", found == Version(1, "doctor"), f"written and read in {inquiry.state_dir}", fix
    )


def check_loopback(inquiry: Inquiry) -> list[Finding]:
    """Check the names and ports of this machine that Spark, its workers and the embedded broker use."""
    return [_localhost(), _own_name(), _ports(inquiry.timeout_s)]


def _localhost() -> Finding:
    fix = f"add the line '{_LOOPBACK} localhost' to /etc/hosts"
    try:
        found = socket.gethostbyname("localhost")
    except OSError as error:
        return Finding("localhost", False, f"cannot be resolved: {error}", fix)
    return Finding("localhost", found.startswith("127."), f"is {found}", fix)


def _own_name() -> Finding:
    name = socket.gethostname()
    fix = f"add the line '{_LOOPBACK} {name}' to /etc/hosts, or set the environment variable SPARK_LOCAL_IP={_LOOPBACK}"
    try:
        return Finding("host name", True, f"{name} is {socket.gethostbyname(name)}", fix)
    except OSError as error:
        return Finding("host name", False, f"{name} cannot be resolved, which Spark needs: {error}", fix)


def _ports(timeout_s: float) -> Finding:
    fix = f"let programs of this machine connect to each other on {_LOOPBACK} (firewall, sandbox, network namespace)"
    try:
        with socket.create_server((_LOOPBACK, 0)) as server:
            address = server.getsockname()
            socket.create_connection(address, timeout_s).close()
    except OSError as error:
        return Finding("loopback ports", False, f"{_LOOPBACK} does not work: {error}", fix)
    return Finding("loopback ports", True, f"a port of {_LOOPBACK} was opened and reached")
