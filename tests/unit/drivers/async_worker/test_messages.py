"""Messages between a worker and its async worker, including objects that cannot be pickled or unpickled."""

from __future__ import annotations

import pickle
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

from millstream.core.asynchronous.async_worker import Answered
from millstream.core.asynchronous.call import Done, Failed, Settled, Ticket, Waits
from millstream.core.model.calls import Calls, CircuitBreaker
from millstream.core.model.errors import ProcessingError
from millstream.drivers.async_worker import AsyncWorkerAddress, AsyncWorkerConnection
from millstream.drivers.async_worker.worker_messages import answer_bytes, unpacked


class KeywordsError(Exception):
    """Cannot be unpickled, because its constructor needs an argument that is not in ``args``; some clients have such errors."""

    def __init__(self, message: str, *, request: Any) -> None:
        super().__init__(message)
        self.request = request


class FailsToUnpickle:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (int, ("no entry",))


def sent_and_received(*settled: Settled, apart: bool = False) -> list[Settled]:
    tickets = [Ticket("call", number, 1, "e") for number, _ in enumerate(settled)]
    answer = unpacked(pickle.loads(answer_bytes(Answered(tuple(zip(tickets, settled))), apart)))
    assert answer is not None
    assert [ticket for ticket, _ in answer.settled] == tickets
    return [result for _, result in answer.settled]


class Shards:
    """Chooses an endpoint for each key, and remembers it."""

    def __init__(self) -> None:
        self.seen: dict[Any, str] = {}

    def __call__(self, key: Any, value: Any) -> str:
        return self.seen.setdefault(key, f"shard-{len(self.seen)}")


def test_the_digest_of_options_does_not_depend_on_the_state_of_endpoint() -> None:
    calls = Calls(circuit_breaker=CircuitBreaker(), endpoint=Shards())
    digests = set()
    for key in ("a", "b"):
        calls_copy = pickle.loads(pickle.dumps(calls))
        calls_copy.endpoint(key, None)
        connection = AsyncWorkerConnection(AsyncWorkerAddress("app", 1, Path("/nowhere")))
        digests.add(connection._digest(calls_copy))
        (data,) = connection._pickles.values()
        assert pickle.loads(data) == Calls(circuit_breaker=CircuitBreaker())
    assert len(digests) == 1


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    "error", [KeywordsError("404", request=None), KeywordsError("404", request=threading.Lock())]
)
def test_an_error_that_cannot_be_sent_is_reported_as_text(error: Exception, apart: bool) -> None:
    done, failed = sent_and_received(Done(1), Failed(3, "KeywordsError: 404", error), apart=apart)
    assert done == Done(1)
    assert isinstance(failed, Failed)
    assert (failed.attempts, failed.cause) == (3, "KeywordsError: 404")
    assert (type(failed.error), str(failed.error)) == (ProcessingError, "KeywordsError: 404")


def test_an_error_that_can_be_sent_keeps_its_type_and_arguments() -> None:
    (failed,) = sent_and_received(Failed(1, "KeyError: 'k'", KeyError("k")))
    assert isinstance(failed, Failed)
    assert (type(failed.error), failed.error and failed.error.args) == (KeyError, ("k",))


@pytest.mark.parametrize("kind", [ValueError, KeywordsError])
def test_an_error_is_sent_with_its_traceback(kind: Any) -> None:
    def call() -> None:
        raise kind("404", **({"request": None} if kind is KeywordsError else {}))

    try:
        call()
    except Exception as error:
        raised = error
    for _ in range(2):  # the calls of a batch share one error
        (failed,) = sent_and_received(Failed(1, "404", raised), apart=True)
        assert isinstance(failed, Failed)
        assert failed.error is not None
        text = "".join(traceback.format_exception(failed.error))
        assert text.count(", in call\n") == 1


def test_the_texts_of_an_error_are_sent_even_if_its_class_cannot_be_sent() -> None:
    failed = Failed(
        1, "404", KeywordsError("404", request=None), kind="client.KeywordsError", trace="the trace"
    )
    (received,) = sent_and_received(failed)
    assert isinstance(received, Failed)
    assert (type(received.error), received.kind, received.trace) == (
        ProcessingError,
        "client.KeywordsError",
        "the trace",
    )


def test_a_result_that_cannot_be_unpickled_does_not_affect_other_results() -> None:
    waits = Waits(5, 2, 0, "retry")
    done, failed, waiting = sent_and_received(Done(1), Done(FailsToUnpickle()), waits, apart=True)
    assert (done, waiting) == (Done(1), waits)
    assert isinstance(failed, Failed)
    assert (
        "cannot unpickle the result of the call of operator 'call': ValueError: invalid literal"
        in failed.cause
    )
    assert "plain values" in failed.cause


@pytest.mark.parametrize("apart", [False, True])
def test_a_result_that_cannot_be_pickled_does_not_affect_other_results(apart: bool) -> None:
    done, failed = sent_and_received(Done(1), Done(threading.Lock()), apart=apart)
    assert done == Done(1)
    assert isinstance(failed, Failed)
    assert "cannot be pickled to send it to the task" in failed.cause
