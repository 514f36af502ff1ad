"""What processes of the Spark driver receive of a topology: enough to plan, and no code of the user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millstream.core.engine.policy import ErrorPolicies
from millstream.core.runtime.batch_plan import Initialization
from millstream.core.runtime.inputs import informed
from millstream.core.runtime.partition_times import topics_timed_by_readers
from millstream.core.topology.layout import lay_out
from millstream.drivers.spark.outline import LeftOut, from_outline, outline
from millstream.drivers.spark.source_options import in_driver, in_executor, option_of
from millstream.drivers.spark.spec import SourceSpec, TopologySpec

_MODULE = """
import millstream as ms

class Order:
    def __init__(self, text): self.text = text

def to_bytes(order): return order.text.encode()
def from_bytes(data): return Order(data.decode())
def moment(record, partition_time): return 7

serde = ms.Serde("order", to_bytes, from_bytes, accepts=(Order,))

class Totals(ms.Processor):
    def process(self, record): pass

def build():
    builder = ms.StreamsBuilder()
    orders = builder.stream("orders", value=serde, timestamp=moment)
    prices = builder.table("prices", value=serde)
    counted = orders.select_key(lambda key, order: order.text).group_by_key().count(store="counts")
    counted.to_stream().to("counts", value=ms.serdes.int64)
    orders.join(prices, lambda order, price: Order(order.text + price.text)).process(Totals)
    return builder.build()
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TopologySpec:
    """A topology of a module that only this process can import."""
    (tmp_path / "shop_topology.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop_topology", raising=False)
    import shop_topology  # type: ignore[import-not-found]

    plan = shop_topology.build().plan("shop")
    layout = lay_out(plan, dict.fromkeys(plan.external_topics, 2))
    groups = {task: number for number, task in enumerate(layout.tasks)}
    return TopologySpec(
        plan, layout, groups, ErrorPolicies(), {}, app_config={"of": shop_topology.Order("a")}
    )


def test_an_outline_has_the_same_plan_as_its_topology(spec: TopologySpec) -> None:
    planned = from_outline(outline(spec))
    assert planned.layout == spec.layout
    assert planned.plan.store_fingerprints() == spec.plan.store_fingerprints()
    assert planned.plan.broker_topics == spec.plan.broker_topics
    assert topics_timed_by_readers(planned.plan) == topics_timed_by_readers(spec.plan)
    assert informed(planned.plan, planned.layout, waits=True) == informed(spec.plan, spec.layout, waits=True)
    assert isinstance(planned.app_config["of"], LeftOut)


def test_an_outline_can_be_read_without_the_code_of_the_user(spec: TopologySpec) -> None:
    """Another process, which cannot import the module, reads it."""
    program = (
        "import sys; from millstream.drivers.spark.outline import from_outline\n"
        "spec = from_outline(sys.stdin.buffer.read()); print(sorted(spec.plan.store_fingerprints()))"
    )
    read = subprocess.run(
        [sys.executable, "-c", program], input=outline(spec), capture_output=True, check=False, timeout=60
    )
    assert read.returncode == 0, read.stderr.decode()[-2000:]
    assert b"counts" in read.stdout


def test_a_function_that_was_left_out_raises_an_error_when_it_is_called() -> None:
    def helper() -> None: ...

    placeholder = from_outline(outline({"f": helper}))["f"]
    with pytest.raises(TypeError, match=r"helper is not known while a topology is only planned"):
        placeholder()


def test_the_driver_can_import_the_modules_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock, or a callback of Kafka's clients, is called where micro-batches are planned."""
    (tmp_path / "shop_clock.py").write_text("def noon(): return 12\n")
    monkeypatch.syspath_prepend(tmp_path)
    import shop_clock  # type: ignore[import-not-found]

    option = option_of(shop_clock.noon, "executors")
    assert in_executor(option) == "executors"
    program = "import sys; from millstream.drivers.spark.source_options import in_driver; print(in_driver(sys.argv[1])())"
    read = subprocess.run(
        [sys.executable, "-c", program, option], capture_output=True, text=True, check=False, timeout=60
    )
    assert read.stdout == "12\n", read.stderr[-2000:]
    assert in_driver(option)() == 12


def test_a_source_spec_is_planned_with_its_outline(spec: TopologySpec) -> None:
    unused: object = None
    # The outline leaves these parts out.
    source = SourceSpec(spec, unused, unused, unused, 1, 1, 3, "earliest", Initialization())  # type: ignore[arg-type]
    option = source.to_option()
    assert SourceSpec.planning(option).readers == 3
    assert isinstance(SourceSpec.planning(option).topology.app_config["of"], LeftOut)
    assert SourceSpec.reading(option).topology.app_config["of"].text == "a"
