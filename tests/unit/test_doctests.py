"""Every example in a docstring of the package is run."""

from __future__ import annotations

import doctest
import importlib

import pytest

from millstream.testing import EmbeddedKafka

from .test_public import MODULES

NEED_A_BROKER = {"millstream.testing.kafka"}


def run(name: str, **more: object) -> doctest.TestResults:
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, name, extraglobs=more):
        runner.run(example)
    return runner.summarize(verbose=False)


@pytest.mark.parametrize("name", [name for name in MODULES if name not in NEED_A_BROKER])
def test_docstring_examples_pass(name: str) -> None:
    assert run(name).failed == 0


def test_the_package_has_docstring_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [
        test for name in MODULES for test in finder.find(importlib.import_module(name), name) if test.examples
    ]
    assert len(found) > 15


@pytest.mark.broker
@pytest.mark.parametrize("name", sorted(NEED_A_BROKER))
def test_docstring_examples_that_need_a_broker_pass(name: str, kafka: EmbeddedKafka) -> None:
    kafka.create_topic("clicks")
    assert run(name, kafka=kafka).failed == 0
