from __future__ import annotations

import inspect
import pickle

import pytest

from millstream import errors

CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.MillstreamError)
]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_keeps_its_class_and_message_when_it_is_pickled(kind: type[errors.MillstreamError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what, where, what now")))
    assert (type(error), error.message, str(error)) == (
        kind,
        "what, where, what now",
        "what, where, what now",
    )


def test_all_errors_derive_from_millstream_error() -> None:
    assert len(CLASSES) > 10
    assert all(issubclass(kind, errors.MillstreamError) for kind in CLASSES)
