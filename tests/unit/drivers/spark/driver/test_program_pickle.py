"""The error for a program that cannot be sent to workers names the node, the function and the variable."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import cloudpickle

import millstream as ms
from millstream.core.model.errors import MillstreamError, SettingsError, TopologyError
from millstream.core.topology.layout import lay_out
from millstream.drivers.spark.driver.program_pickle import pickled_program
from millstream.drivers.spark.spec import TopologySpec

LOCK = threading.Lock()
Build = Callable[[ms.KStream[Any, Any]], ms.KStream[Any, Any]]


class Client:
    """Has a lock, as clients do."""

    def __init__(self) -> None:
        self.lock = LOCK

    def ask(self, value: str) -> str:
        return value


def spec_with(build: Build, *, policies: ms.ErrorPolicies | None = None, **more: Any) -> TopologySpec:
    builder = ms.StreamsBuilder()
    build(builder.stream("in")).to("out")
    plan = builder.build().plan("app")
    return TopologySpec(plan, lay_out(plan, {"in": 1}), {}, policies or ms.ErrorPolicies(), {}, **more)


def refusal(kind: type[MillstreamError], spec: TopologySpec) -> str:
    with pytest.raises(kind) as refused:
        pickled_program((spec, "more"), spec)
    assert isinstance(refused.value.__cause__, TypeError)
    return str(refused.value)


def locking(lock: Any) -> Build:
    class Locking(ms.Processor[str, str, str, str]):
        def process(self, record: ms.Record[str, str]) -> None:
            self.context.forward(record.with_value(str(lock)))

    return lambda stream: stream.process(Locking, name="locking")


def test_a_program_that_can_be_sent_is_pickled() -> None:
    spec = spec_with(lambda stream: stream.map_values(lambda value: value * 2))
    assert cloudpickle.loads(pickled_program((1, spec), spec))[0] == 1


def test_the_error_names_the_node_the_function_and_its_variable() -> None:
    lock = LOCK
    message = refusal(TopologyError, spec_with(lambda stream: stream.map_values(lambda v: (v, lock))))
    assert message.startswith(
        "node 'KSTREAM-MAPVALUES-0000000001' cannot be sent to Spark's workers: in test_"
    )
    assert f"<lambda> ({__file__}, line " in message
    assert (
        "), its variable 'lock' is of the type _thread.lock, which cannot be pickled (TypeError: " in message
    )
    assert "Create such an object where it is used: in init() of a processor" in message


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda s: s.map_values(Client().ask), "the attribute 'lock' of Client"),
        (lambda s: s.map_values(functools.partial(max, LOCK)), "the argument 0 of functools.partial"),
        (lambda s: s.map_values(lambda v, lock=LOCK: v), "a default value"),
        (lambda s: s.map_values(lambda v, *, lock=LOCK: v), "the default value of 'lock'"),
        (locking(LOCK), "its variable 'lock'"),
        (locking({"locks": [LOCK]}), "the item 0"),
    ],
    ids=["object", "partial", "default", "keyword default", "class", "collection"],
)
def test_objects_that_are_pickled_with_a_function_are_searched(build: Build, named: str) -> None:
    assert f"{named} is of the type _thread.lock" in refusal(TopologyError, spec_with(build))


def test_the_error_names_a_value_of_the_configuration() -> None:
    spec = spec_with(lambda stream: stream, app_config={"limit": 3, "client": {"lock": LOCK}})
    message = refusal(SettingsError, spec)
    assert message.startswith(
        "app_config['client'] cannot be sent to Spark's workers: the entry 'lock' is of "
    )


def test_the_error_names_a_variable_of_an_error_handler() -> None:
    lock = LOCK
    policies = ms.ErrorPolicies(process=lambda context, error: "skip" if lock else "fail")
    message = refusal(SettingsError, spec_with(lambda stream: stream, policies=policies))
    assert message.startswith("an error policy cannot be sent to Spark's workers: in test_")
    assert "), its variable 'lock' is of " in message


def test_other_objects_that_cannot_be_sent_raise_their_own_error() -> None:
    spec = spec_with(lambda stream: stream)
    with pytest.raises(TypeError, match="cannot pickle"):
        pickled_program((spec, LOCK), spec)
