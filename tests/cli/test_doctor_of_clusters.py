"""``millstream doctor --master``: the checks of executors. tests/integration/test_cluster.py uses a real cluster."""

from __future__ import annotations

import platform
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from millstream.edge.cli.doctor.executors import check_executors, executor_findings, refused_finding
from millstream.edge.cli.doctor.finding import Inquiry
from millstream.edge.cli.doctor.machine import MINIMUM_DISK
from millstream.edge.cli.doctor.probe import Facts, Wanted, look

OWN = {"python": "3.11.9", "pyspark": "4.3.0", "pyarrow": "21.0.0", "millstream": "0.1.0"}
SOUND: Facts = {
    "host": "node",
    "executor": "3",
    "interpreter": "/usr/bin/python3",
    "python": "3.11.2",
    "versions": {
        "pyspark": ("4.3.0", ""),
        "pyarrow": ("21.0.0", ""),
        "millstream": ("0.1.0", ""),
        "lmdb": ("1.7", ""),
    },
    "unreachable": {},
    "directories": {"/state": ("", 2 * MINIMUM_DISK)},
}


def test_an_executor_without_problems_is_reported_in_one_line() -> None:
    (finding,) = executor_findings(SOUND, {"lmdb": ">=1.6"}, OWN)
    assert (finding.name, finding.ok) == ("executor 3 on node", True)
    assert (
        finding.detail
        == "Python 3.11.2 (/usr/bin/python3), millstream 0.1.0, pyspark 4.3.0, pyarrow 21.0.0, 2.0 GiB free"
    )


@pytest.mark.parametrize(
    ("other", "detail", "fix"),
    [
        ({"python": "3.12.1"}, "Python 3.12.1, but the driver has 3.11.9", "PYSPARK_PYTHON"),
        (
            {"versions": {**SOUND["versions"], "pyarrow": ("20.0.0", "")}},
            "pyarrow: 20.0.0, but the driver has 21.0.0",
            "on that host: /usr/bin/python3 -m pip install 'pyarrow==21.0.0'",
        ),
        (
            {"versions": {**SOUND["versions"], "millstream": ("", "not installed")}},
            "millstream: not installed",
            "on that host: /usr/bin/python3 -m pip install 'millstream==0.1.0'",
        ),
        (
            {"versions": {**SOUND["versions"], "lmdb": ("1.5", "")}},
            "lmdb: 1.5 (needs >=1.6)",
            "on that host: /usr/bin/python3 -m pip install 'lmdb>=1.6'",
        ),
        (
            {"unreachable": {"kafka:9092": "refused"}},
            "the broker kafka:9092 cannot be reached: refused",
            "open that port",
        ),
        (
            {"directories": {"/state": ("cannot be written: no", 1 << 40)}},
            "/state cannot be written: no",
            "chmod 700",
        ),
        ({"directories": {"/state": ("", 1 << 29)}}, "/state has 0.5 GiB free", "with 1 GiB"),
    ],
)
def test_each_problem_of_an_executor_is_reported_with_its_fix(
    other: dict[str, Any], detail: str, fix: str
) -> None:
    facts = cast("Facts", {**SOUND, **other})
    (finding,) = executor_findings(facts, {"lmdb": ">=1.6"}, OWN)
    assert (finding.ok, finding.detail) == (False, detail)
    assert fix in finding.fix


def test_the_probe_reports_packages_addresses_and_directories(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as open_port, socket.create_server(("127.0.0.1", 0)) as other:
        reachable, unreachable = open_port.getsockname(), other.getsockname()
        other.close()
        shared = tmp_path / "shared"
        shared.mkdir()
        shared.chmod(0o777)
        wanted = Wanted(
            {"pyspark": "pyspark", "no-such-package": "no_such_package"},
            [reachable, unreachable],
            [str(tmp_path / "new"), str(shared)],
            5.0,
        )
        result = look(wanted, lambda _: "7")
    assert (result["executor"], result["python"]) == ("7", platform.python_version())
    assert result["versions"]["no-such-package"] == ("", "not installed")
    assert result["versions"]["pyspark"][1] == ""
    assert list(result["unreachable"]) == [f"127.0.0.1:{unreachable[1]}"]
    assert [why for why, _ in result["directories"].values()] == ["", "can be written by other users"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shared"]


def test_a_spark_error_is_reported_in_one_line() -> None:
    error = (
        "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted\n\tat org.apache.Foo\n"
        "pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in driver: 3.11"
    )
    finding = refused_finding("spark://h:7077", error)
    assert not finding.ok
    assert finding.detail.startswith("no Spark job could run on spark://h:7077: pyspark.errors")
    assert finding.detail.endswith("3.10 than that in driver: 3.11")


def test_without_a_cluster_no_executor_is_checked(tmp_path: Path) -> None:
    assert check_executors(Inquiry(None, (), tmp_path, {})) == []
    (finding,) = check_executors(Inquiry(None, (), tmp_path, {}, master="local[2]"))
    assert finding.ok
