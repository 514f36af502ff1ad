"""Processors in streams: the stores that they supply, the keys of process_values, and wrapping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import millstream as ms
from millstream.core.model.errors import ProcessingError, TopologyError
from unit.helpers import Host, forwarding, processing, sent

TEXT = ms.serdes.string
SEEN = ms.stores.key_value("seen", TEXT, TEXT)


class ForwardPrevious(ms.Processor[str, str, str, str]):
    """Forwards the previous value of the key; supplies its own store."""

    stores = (SEEN,)

    def process(self, record: ms.Record[str, str]) -> None:
        seen = self.context.state_store("seen")
        self.context.forward(record.with_value(f"{seen.get(record.key)}-{record.value}"))
        seen.put(record.key, record.value)


class Longest(ms.ValueTransformer[str, str, str]):
    """Forwards the longest value of the key; supplies its store by a function."""

    @staticmethod
    def stores() -> list[ms.stores.StoreSpec]:
        return [SEEN]

    def transform(self, key: str, value: str | None) -> str | None:
        seen = self.context.state_store("seen")
        seen.put(key, max(seen.get(key) or "", value or "", key=len))
        longest: str | None = seen.get(key)
        return longest


def built(define: Any, **serdes: Any) -> ms.Topology:
    builder = ms.StreamsBuilder()
    define(builder).to("out", **serdes)
    return builder.build()


class TestStoresThatAProcessorSupplies:
    @pytest.mark.parametrize("method", ["process", "process_values"])
    def test_are_added_and_connected(self, method: str) -> None:
        host = Host(built(lambda builder: getattr(builder.stream("in"), method)(ForwardPrevious)))
        assert sent(host.run("in", ("a", "1", 0), ("a", "2", 0))) == [("a", "None-1", 0), ("a", "1-2", 0)]

    def test_can_be_supplied_by_a_transformer_of_a_table(self) -> None:
        host = Host(built(lambda builder: builder.table("in").transform_values(Longest).to_stream()))
        assert [value for _, value, _ in sent(host.run("in", ("a", "ab", 0), ("a", "c", 0)))] == ["ab", "ab"]

    def test_are_shared_by_processors_that_supply_the_same(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream("in").process(ForwardPrevious).to("out")
        builder.stream("other").process(ForwardPrevious).to("out")
        (sub,) = builder.build().plan("app").subtopologies
        assert list(sub.stores) == ["seen"]

    def test_are_added_to_a_low_level_topology(self) -> None:
        topology = ms.Topology().add_source("source", "in").add_processor("before", ForwardPrevious, "source")
        assert [*topology.stores] == ["seen"]

    @pytest.mark.parametrize("stores", ["seen", ["seen"], 5, lambda self: ()])
    def test_must_be_specifications_of_stores(self, stores: Any) -> None:
        supplier = type("Odd", (ForwardPrevious,), {"stores": stores})
        with pytest.raises(TopologyError, match="the attribute 'stores' of a supplier"):
            ms.StreamsBuilder().stream("in").process(supplier)

    def test_must_not_have_the_name_of_a_different_store(self) -> None:
        builder = ms.StreamsBuilder()
        builder.add_state_store(ms.stores.key_value("seen", TEXT, ms.serdes.int64))
        with pytest.raises(TopologyError, match="two different stores have the name 'seen'"):
            builder.stream("in").process(ForwardPrevious)


class TestKeysOfProcessValues:
    def test_are_kept(self) -> None:
        host = Host(built(lambda builder: builder.stream("in").process_values(forwarding(lambda c, r: "x"))))
        assert sent(host.run("in", ("a", "1", 0), (None, "2", 0))) == [("a", "x", 0), (None, "x", 0)]

    def test_cannot_be_changed(self) -> None:
        supplier = processing(lambda context, record: context.forward(record.with_key("b")))
        host = Host(built(lambda builder: builder.stream("in").process_values(supplier)))
        with pytest.raises(
            ProcessingError, match=r"key 'a' and forwards one with the key 'b', but process_values"
        ):
            host.run("in", ("a", "1", 0))

    @pytest.mark.parametrize("serde_is_known", [True, False])
    @pytest.mark.parametrize(
        ("key", "other", "same"),
        [
            ("a", "".join(["a"]), True),
            ([1, 2], [1, 2], True),
            ("a", None, False),
            (1, True, False),
            (1, 1.0, False),
            (np.arange(3), np.arange(4), False),
        ],
    )
    def test_are_compared_exactly(self, key: Any, other: Any, same: bool, serde_is_known: bool) -> None:
        supplier = processing(lambda context, record: context.forward(record.with_key(other)))

        def build(builder: ms.StreamsBuilder) -> ms.KStream[Any, Any]:
            stream = builder.stream("in", key=ms.serdes.pickle).select_key(lambda _, value: key)
            known = stream.repartition(key=ms.serdes.pickle) if serde_is_known else stream
            return known.process_values(supplier)

        with ms.testing.TopologyTestDriver(built(build, key=ms.serdes.pickle)) as driver:
            if same:
                driver.pipe("in", "", "1")
                assert [record.key for record in driver.read("out")] == [other]
            else:
                with pytest.raises(ProcessingError, match="but process_values"):
                    driver.pipe("in", "", "1")

    def test_are_compared_by_their_bytes(self) -> None:
        """A comparison of two arrays has no single result."""
        arrays = ms.serdes.of(lambda array: array.tobytes(), lambda data: np.frombuffer(data, "int64"))
        supplier = processing(lambda context, record: context.forward(record.with_key(record.key.copy())))
        builder = ms.StreamsBuilder()
        builder.stream("in", key=arrays).process_values(supplier).to("out", key=arrays)
        with ms.testing.TopologyTestDriver(builder.build()) as driver:
            driver.pipe("in", np.arange(3), "1")
            assert [record.key.tolist() for record in driver.read("out")] == [[0, 1, 2]]

    def test_are_not_checked_in_a_punctuator(self) -> None:
        def schedule(context: ms.ProcessorContext[Any, Any]) -> None:
            context.schedule(10, ms.stream_time, lambda now: context.forward(ms.Record("clock", "x", now)))

        supplier = processing(lambda context, record: None, init=schedule)
        host = Host(built(lambda builder: builder.stream("in").process_values(supplier)))
        assert sent(host.run("in", ("a", "1", 10))) == [("clock", "x", 10)]


class TestAReadOnlyStore:
    def topology(self, reader: Any) -> ms.Topology:
        keep = processing(lambda context, record: context.state_store("seen").put(record.key, record.value))
        topology = ms.Topology().add_read_only_state_store(SEEN, "kept", "rows", "keep", keep)
        topology.add_source("source", "in").add_processor("reader", reader, "source", stores=["seen"])
        return topology.add_sink("sink", "out", "reader")

    def test_has_the_content_of_its_topic(self) -> None:
        host = Host(self.topology(forwarding(lambda c, r: str(c.state_store("seen").get(r.key)))))
        host.run("rows", ("a", "1", 0))
        host.restart()
        assert sent(host.run("in", ("a", "x", 0), ("b", "x", 0))) == [("a", "1", 0), ("b", "None", 0)]

    def test_cannot_be_written_by_another_processor(self) -> None:
        host = Host(self.topology(processing(lambda c, r: c.state_store("seen").put("a", "mine"))))
        with pytest.raises(ProcessingError, match=r"put\(\) on store 'seen': it is read-only here"):
            host.run("in", ("a", "x", 0))

    def test_must_be_a_key_value_store(self) -> None:
        store = ms.stores.session("sessions", TEXT, TEXT, retention=1_000)
        with pytest.raises(TopologyError, match="a read-only store must be a key-value store without ttl"):
            ms.Topology().add_read_only_state_store(store, "kept", "rows", "keep", ForwardPrevious)


COUNTS = ms.stores.key_value("wrapped-calls", ms.serdes.string, ms.serdes.int64)


class Wrapper:
    """Counts calls in its own store, and delegates to the processor that it wraps."""

    stores = (COUNTS,)

    def __init__(self, name: str, supplier: Callable[[], Any]) -> None:
        self._name, self._supplier = name, supplier

    def __call__(self) -> Any:
        return _Counting(self._name, self._supplier())


class _Counting:
    def __init__(self, name: str, inner: Any) -> None:
        self._name, self._inner = name, inner

    def init(self, context: Any) -> None:
        self._counts = context.state_store("wrapped-calls")
        self._inner.init(context)

    def process(self, record: ms.Record[Any, Any]) -> None:
        self._count()
        self._inner.process(record)

    def transform(self, key: Any, value: Any) -> Any:
        self._count()
        return self._inner.transform(key, value)

    def close(self) -> None:
        self._inner.close()

    def _count(self) -> None:
        self._counts.put(self._name, (self._counts.get(self._name) or 0) + 1)


def test_all_processors_and_transformers_are_wrapped() -> None:
    class Same(ms.Processor[Any, Any, Any, Any]):
        stores = (ms.stores.key_value("own", ms.serdes.string, ms.serdes.string),)

        def process(self, record: ms.Record[Any, Any]) -> None:
            self.context.state_store("own").put(record.key, record.value)
            self.context.forward(record)

    class Shout(ms.ValueTransformer[Any, Any, Any]):
        def transform(self, key: Any, value: Any) -> Any:
            return value.upper()

    builder = ms.StreamsBuilder(wrap=Wrapper)
    stream = builder.stream("in").process(Same, name="one").process_values(Same, name="two")
    stream.to_table().transform_values(Shout, name="three").to_stream().to("out")
    with ms.testing.TopologyTestDriver(builder.build()) as driver:
        driver.pipe("in", "k", "v")
        assert [record.value for record in driver.read("out")] == ["V"]
        assert dict(driver.store("wrapped-calls").all()) == {"one": 1, "two": 1, "three": 1}
        assert driver.store("own").get("k") == "v"


def test_processors_of_topologies_and_global_stores_are_wrapped() -> None:
    seen: list[str] = []

    def wrap(name: str, supplier: Callable[[], Any]) -> Callable[[], Any]:
        seen.append(name)
        return supplier

    class Quiet(ms.Processor[Any, Any, Any, Any]):
        def process(self, record: ms.Record[Any, Any]) -> None: ...

    topology = ms.Topology(wrap=wrap).add_source("s", "in").add_processor("added", Quiet, "s")
    topology.add_global_store(COUNTS, "g", "topic", "global", Quiet)
    assert set(seen) == {"added", "global"}


def test_wrap_must_return_a_supplier() -> None:
    class Quiet(ms.Processor[Any, Any, Any, Any]):
        def process(self, record: ms.Record[Any, Any]) -> None: ...

    topology = ms.Topology(wrap=lambda name, supplier: supplier()).add_source("s", "in")
    with pytest.raises(TopologyError, match="pass the class or a function that creates a processor"):
        topology.add_processor("one", Quiet, "s")
