"""Errors that cross process boundaries, and pauses of the garbage collector."""

from __future__ import annotations

import gc
import traceback

import pytest

from millstream.core.model import errors
from millstream.drivers.spark.crossing import crossing, find_error, paused_gc


def caught(error: Exception) -> str:
    try:
        with crossing():
            raise error
    except Exception as crossed:
        return f"java.lang.RuntimeException: Traceback ...\n{type(crossed).__name__}: {crossed}\n\tat org.apache.spark.Foo"


@pytest.mark.parametrize(
    "kind",
    [
        errors.ProcessingError,
        errors.StoreError,
        errors.TopicNotFoundError,
        errors.SparkRuntimeError,
        errors.MillstreamError,
    ],
)
def test_an_error_is_restored_after_it_has_crossed_the_jvm(kind: type[errors.MillstreamError]) -> None:
    found = find_error(caught(kind('what "happened",\nwhere: äöü 💥')))
    assert type(found) is kind
    assert found.message == 'what "happened",\nwhere: äöü 💥'


def test_an_error_keeps_its_traceback_and_that_of_its_cause() -> None:
    def recursive(depth: int) -> int:
        return recursive(depth - 1) if depth else [][depth]

    def failed(depth: int) -> str:
        try:
            recursive(depth)
        except IndexError as error:
            failure = errors.ProcessingError("why")
            failure.__cause__ = error
        found = find_error(caught(failure))
        assert found is not None
        return "".join(traceback.format_exception(found))

    text = failed(1)
    assert text.count(", in recursive\n") == 2
    assert "IndexError: list index out of range" in text
    assert text.endswith("ProcessingError: why\n")


def test_a_long_traceback_is_shortened_in_the_middle() -> None:
    found = find_error(caught(errors.ProcessingError(f"begin{'.' * 1_000_000}end")))
    text = str(found and found.__cause__)
    assert len(text) < 25_000
    assert ("begin" in text, "end" in text, text.count("\n...\n")) == (True, True, 1)


def test_the_text_of_a_crossing_error_is_readable() -> None:
    assert "the topic is gone" in caught(errors.TopicNotFoundError("the topic is gone"))


def test_an_error_that_crosses_twice_keeps_its_first_type() -> None:
    inner = caught(errors.StoreError("inner"))
    found = find_error(caught(errors.SparkRuntimeError(inner)))
    assert found is not None
    again = find_error(found.message)
    assert isinstance(again, errors.StoreError)


def test_an_error_of_an_unknown_subclass_becomes_a_millstream_error() -> None:
    class HomeMadeError(errors.MillstreamError):
        pass

    found = find_error(caught(HomeMadeError("mine")))
    assert type(found) is errors.MillstreamError
    assert found.message == "mine"


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(KeyError), crossing():
        raise KeyError("x")
    assert find_error("java.lang.OutOfMemoryError") is None


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_restored_after_a_pause(enabled: bool) -> None:
    def failing_batch() -> None:
        with paused_gc():
            assert not gc.isenabled()
            raise KeyError

    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(KeyError):
            failing_batch()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
