"""A process that ends when its standard input closes also ends if the program is killed while its children are alive."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from millstream.drivers.spark.driver.launch import end_jvm_with_program
from unit.forks import forked_child


def test_the_jvm_ends_with_the_program_even_if_a_child_process_is_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After kill -9 of a program with a process pool, its JVM used to run until the pool ended."""
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as jvm:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=jvm))
        end_jvm_with_program()
        with forked_child():
            assert jvm.poll() is None
            assert jvm.stdin is not None
            jvm.stdin.close()  # as when the program ends
            assert jvm.wait(30) == 0


@pytest.mark.parametrize("gateway", [None, SimpleNamespace(), SimpleNamespace(proc=None)])
def test_a_jvm_that_another_program_has_started_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, gateway: object
) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    end_jvm_with_program()
