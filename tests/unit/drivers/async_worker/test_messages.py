"""What travels between a worker and its async worker, also if it can only be pickled."""

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
    """Like the errors of some clients: what it is made of is not what it keeps."""

    def __init__(self, message: str, *, request: Any) -> None:
        super().__init__(message)
        self.request = request


class NoEntry:
    """Can be pickled, and no more."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (int, ("no entry",))


def arrived(*settled: Settled, apart: bool = False) -> list[Settled]:
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


def test_options_are_the_same_in_every_python_worker_if_endpoint_keeps_state() -> None:
    calls = Calls(circuit_breaker=CircuitBreaker(), endpoint=Shards())
    digests = set()
    for key in ("a", "b"):
        own = pickle.loads(pickle.dumps(calls))
        own.endpoint(key, None)
        connection = AsyncWorkerConnection(AsyncWorkerAddress("app", 1, Path("/nowhere")))
        digests.add(connection._digest(own))
        (data,) = connection._pickles.values()
        assert pickle.loads(data) == Calls(circuit_breaker=CircuitBreaker())
    assert len(digests) == 1


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    "error", [KeywordsError("404", request=None), KeywordsError("404", request=threading.Lock())]
)
def test_an_error_that_does_not_survive_the_way_is_reported_as_text(error: Exception, apart: bool) -> None:
    done, failed = arrived(Done(1), Failed(3, "KeywordsError: 404", error), apart=apart)
    assert done == Done(1)
    assert isinstance(failed, Failed)
    assert (failed.attempts, failed.cause) == (3, "KeywordsError: 404")
    assert (type(failed.error), str(failed.error)) == (ProcessingError, "KeywordsError: 404")


def test_an_error_that_survives_it_stays_what_it_is() -> None:
    (failed,) = arrived(Failed(1, "KeyError: 'k'", KeyError("k")))
    assert isinstance(failed, Failed)
    assert (type(failed.error), failed.error and failed.error.args) == (KeyError, ("k",))


@pytest.mark.parametrize("kind", [ValueError, KeywordsError])
def test_an_error_brings_its_traceback(kind: Any) -> None:
    def call() -> None:
        raise kind("404", **({"request": None} if kind is KeywordsError else {}))

    try:
        call()
    except Exception as error:
        raised = error
    for _ in range(2):  # the errors of a batch of calls are one object
        (failed,) = arrived(Failed(1, "404", raised), apart=True)
        assert isinstance(failed, Failed)
        assert failed.error is not None
        text = "".join(traceback.format_exception(failed.error))
        assert text.count(", in call\n") == 1


def test_the_texts_of_an_error_travel_also_if_its_class_does_not() -> None:
    failed = Failed(
        1, "404", KeywordsError("404", request=None), kind="client.KeywordsError", trace="the trace"
    )
    (received,) = arrived(failed)
    assert isinstance(received, Failed)
    assert (type(received.error), received.kind, received.trace) == (
        ProcessingError,
        "client.KeywordsError",
        "the trace",
    )


def test_a_result_that_cannot_be_unpickled_takes_no_other_with_it() -> None:
    waits = Waits(5, 2, 0, "retry")
    done, failed, waiting = arrived(Done(1), Done(NoEntry()), waits, apart=True)
    assert (done, waiting) == (Done(1), waits)
    assert isinstance(failed, Failed)
    assert (
        "cannot unpickle the result of the call of operator 'call': ValueError: invalid literal"
        in failed.cause
    )
    assert "plain values" in failed.cause


@pytest.mark.parametrize("apart", [False, True])
def test_a_result_that_cannot_be_pickled_takes_no_other_with_it(apart: bool) -> None:
    done, failed = arrived(Done(1), Done(threading.Lock()), apart=apart)
    assert done == Done(1)
    assert isinstance(failed, Failed)
    assert "cannot be pickled to send it to the task" in failed.cause
