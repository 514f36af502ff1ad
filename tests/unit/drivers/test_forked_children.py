"""A process that ends with its standard input ends with the program, although a child of the program lives."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from millstream.drivers.spark.driver.launch import end_jvm_with_program
from unit.forks import forked_child


def test_a_jvm_ends_although_a_child_of_the_program_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """After kill -9 of a program with a process pool, its JVM went on running until somebody ended the pool."""
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
