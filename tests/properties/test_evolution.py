"""Edits of a topology in any order: each store keeps its sub-topology number, and no number is reused for another store."""

from __future__ import annotations

from hypothesis import event, given
from hypothesis import strategies as st

import millstream as ms
from millstream.core.topology.evolution import ComparedPart, continued, parts_of
from millstream.core.topology.layout import lay_out
from millstream.core.topology.plan import Plan


class Quiet(ms.Processor):
    def process(self, record: ms.Record) -> None:
        pass


def plan(names: list[str]) -> Plan:
    """Make a sub-topology per name, which is its topic; one with a capital letter has a store."""
    topology = ms.Topology()
    for name in names:
        topology.add_source(name, name)
        stores = [f"store-{name}"] if name.isupper() else []
        for store in stores:
            topology.add_state_store(ms.stores.key_value(store, ms.serdes.string, ms.serdes.string))
        topology.add_processor(f"p-{name}", Quiet, name, stores=stores)
    return topology.plan("app")


@given(st.lists(st.lists(st.sampled_from("ABCabc"), min_size=1, unique=True), min_size=2, max_size=6))
def test_topics_and_stores_keep_the_number_of_their_subtopology(edits: list[list[str]]) -> None:
    before: dict[int, ComparedPart] = {}
    owner: dict[int, str] = {}
    for names in edits:
        edited = continued(plan(names), before)
        assert [sub.id for sub in edited.subtopologies] == list(range(len(edited.subtopologies)))
        assert len(edited.subtopologies) >= len(before)
        present = {sub.id: sub.source_topics[0] for sub in edited.subtopologies if sub.nodes}
        assert sorted(present.values()) == sorted(names)
        for number, part in before.items():
            if not part.topics:
                assert number not in present, "the number of a part that is gone"
            elif part.topics[0] in names:
                assert present[number] == part.topics[0]
        for number, name in present.items():
            assert owner.setdefault(number, name) == name
        event(f"gone: {len(edited.subtopologies) - len(present)}")
        before = parts_of(edited, lay_out(edited, dict.fromkeys(edited.external_topics, 2)), before)
