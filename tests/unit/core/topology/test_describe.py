"""Pictures of a topology: text as Kafka Streams writes it, Mermaid, DOT, SVG."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

import millstream as ms
from millstream.core.model.errors import TopologyError
from millstream.core.topology.describe import parts_of, started_text
from millstream.core.topology.evolution import ComparedPart, continued
from millstream.core.topology.layout import lay_out
from millstream.core.topology.pictures.svg import laid_out

STORE = ms.stores.key_value("seen", ms.serdes.string, ms.serdes.string)


class Quiet(ms.Processor):
    def process(self, record: ms.Record) -> None:
        pass


def two_parts() -> ms.Topology:
    """Two sub-topologies, a store, a fan-out, a node without children and a chosen topic."""
    return (
        ms.Topology()
        .add_source("lines", ["a", "b"])
        .add_processor("dedup", Quiet, "lines")
        .add_processor("watch", Quiet, ["lines", "dedup"])
        .add_state_store(STORE, processors=["dedup"])
        .add_sink("out", "unique", "dedup")
        .add_source("other", "c")
        .add_sink("chosen", lambda key, value, context: "x", "other")
    )


def word_count() -> ms.Topology:
    builder = ms.StreamsBuilder()
    words = builder.stream("lines", name="read").flat_map_values(str.split, name="split")
    words.group_by(lambda k, v: v).count(store="counts").to_stream().to("out", value=ms.serdes.int64)
    return builder.build()


KAFKA_STREAMS = """\
Topologies:
   Sub-topology: 0
    Source: lines (topics: [a, b])
      --> dedup, watch
    Processor: dedup (stores: [seen])
      --> watch, out
      <-- lines
    Sink: out (topic: unique)
      <-- dedup
    Processor: watch (stores: [])
      --> none
      <-- lines, dedup

  Sub-topology: 1
    Source: other (topics: [c])
      --> chosen
    Sink: chosen (extractor class: function)
      <-- other"""
"""The form of TopologyDescription in Kafka Streams: two spaces before each part except the first, empty lines between parts."""


def test_the_text_has_the_form_of_kafka_streams() -> None:
    assert two_parts().describe().rstrip() == KAFKA_STREAMS


def test_the_text_has_the_same_words_as_that_of_kafka_streams() -> None:
    assert two_parts().describe().split() == KAFKA_STREAMS.split()


def test_a_repartition_is_shown_as_sink_and_source() -> None:
    lines = [line.strip() for line in word_count().describe().splitlines()]
    assert "Sink: counts-repartition-sink (topic: application-counts-repartition)" in lines
    assert "Source: counts-repartition-source (topics: [application-counts-repartition])" in lines


def nodes_of(mermaid: str) -> dict[str, str]:
    """Read the nodes of a Mermaid chart: id to label."""
    return dict(re.findall(r'^ +(\w+)\(?\[\(?"([^"]+)"\)?\]\)?$', mermaid, re.MULTILINE))


def test_mermaid_draws_nodes_stores_and_edges() -> None:
    chart = two_parts().mermaid()
    lines = chart.splitlines()
    assert lines[0] == "flowchart TB"
    assert sum(line.startswith("  subgraph ") for line in lines) == lines.count("  end") == 2
    nodes = nodes_of(chart)
    assert set(nodes.values()) == {
        *("a", "b", "c", "unique"),
        *("lines", "dedup", "watch", "out", "seen", "other", "chosen"),
    }
    edges = [
        re.fullmatch(r"  (\w+) (-->|-\.->?|-\.-) (\w+)", line)
        for line in lines
        if "-" in line[3:] and "[" not in line
    ]
    drawn = {(nodes[e[1]], e[2], nodes[e[3]]) for e in edges if e is not None}
    assert len(drawn) == len(edges)
    assert drawn == {
        ("a", "-->", "lines"),
        ("b", "-->", "lines"),
        ("c", "-->", "other"),
        ("out", "-->", "unique"),
        ("lines", "-->", "dedup"),
        ("lines", "-->", "watch"),
        ("dedup", "-->", "watch"),
        ("dedup", "-->", "out"),
        ("dedup", "-.-", "seen"),
        ("other", "-->", "chosen"),
    }


def test_mermaid_distinguishes_similar_names() -> None:
    names = ["a-b", "a_b", "a.b"]
    topology = ms.Topology().add_source("in", "x")
    for name in names:
        topology.add_processor(name, Quiet, "in")
    topology.add_processor("store-a", Quiet, "in")
    topology.add_state_store(
        ms.stores.key_value("a", ms.serdes.string, ms.serdes.string), processors=["store-a"]
    )
    assert sorted(nodes_of(topology.mermaid()).values()) == sorted(["x", "in", *names, "store-a", "a"])


def test_dot_is_balanced_and_draws_every_edge() -> None:
    graph = two_parts().dot()
    assert graph.count("{") == graph.count("}") == 3
    assert graph.count('"') % 2 == 0
    assert graph.startswith("digraph topology {")
    assert graph.endswith("}")
    assert '  "dedup" -> "store:seen" [style=dashed];' in graph
    assert '  "lines" -> "watch";' in graph
    assert '    "store:seen" [shape=cylinder, label="seen"];' in graph


def test_drawings_join_two_parts_by_the_topic_between_them() -> None:
    topic = "application-counts-repartition"
    assert f'  "counts-repartition-sink" -> "topic:{topic}";\n' in word_count().dot()
    assert f'  "topic:{topic}" -> "counts-repartition-source";\n' in word_count().dot()
    labels = list(nodes_of(word_count().mermaid()).values())
    assert labels.count(topic) == 1


def test_every_picture_has_every_name() -> None:
    topology = two_parts()
    for picture in (topology.describe(), topology.mermaid(), topology.dot(), topology.svg()):
        names = set(re.findall(r"[\w-]+", picture))
        assert names >= {"a", "b", "c", "lines", "dedup", "watch", "out", "unique", "seen", "other", "chosen"}


def elements(svg: str, tag: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(svg).findall(f"{{http://www.w3.org/2000/svg}}{tag}")


def test_each_box_of_the_svg_lists_the_topics_and_stores_of_its_node() -> None:
    assert [text.text for text in elements(two_parts().svg(), "text")] == [
        "Sub-topology 0",
        *("lines", "reads a", "reads b"),
        *("dedup", "uses seen"),
        "watch",
        *("out", "writes unique"),
        "Sub-topology 1",
        *("other", "reads c"),
        *("chosen", "writes a topic chosen per record"),
    ]


def test_the_svg_draws_a_path_for_each_parent() -> None:
    assert len(elements(two_parts().svg(), "path")) == 5


def test_boxes_are_inside_the_picture_and_do_not_overlap() -> None:
    for topology in (two_parts(), word_count()):
        frame = ElementTree.fromstring(topology.svg()).attrib
        boxes = [
            tuple(int(box.attrib[edge]) for edge in ("x", "y", "width", "height"))
            for box in elements(topology.svg(), "rect")
            if "data-node" in box.attrib
        ]
        assert all(x + w <= int(frame["width"]) and y + h <= int(frame["height"]) for x, y, w, h in boxes)
        for number, (x, y, w, h) in enumerate(boxes):
            for x2, y2, w2, h2 in boxes[number + 1 :]:
                assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


def test_children_are_below_all_their_parents() -> None:
    parts = parts_of(two_parts().plan())
    part, boxes = parts[0], laid_out(parts).boxes
    for shape in part.shapes:
        for parent in shape.before:
            assert boxes[parent].y + boxes[parent].height < boxes[shape.name].y


def test_a_notebook_shows_the_svg() -> None:
    assert word_count()._repr_html_() == word_count().svg()


def test_a_sink_refuses_an_invalid_topic_name() -> None:
    with pytest.raises(TopologyError, match="cannot be the name of a topic"):
        ms.Topology().add_source("in", "a").add_sink("out", 'my "topic"', "in")


STARTED = """\
Application app (consumer group app)
  sub-topology 1 (one task per partition group, 3 tasks)
    reads  people (3 partitions)
    keeps  people-table (timestamped-key-value string -> string)
    writes app-counts-repartition (internal topic)
  sub-topology 2 (one task per partition group, 3 tasks)
    reads  app-counts-repartition (internal topic, 3 partitions)
    keeps  counts (timestamped-key-value string -> int64)
    writes out
  internal topic app-counts-repartition (3 partitions, cleanup.policy=delete, retention.ms=-1, \
segment.bytes=52428800, message.timestamp.type=CreateTime)"""


def test_the_start_report_has_final_numbers_and_omits_removed_sub_topologies() -> None:
    builder = ms.StreamsBuilder()
    regions = builder.table("people").group_by(lambda _, region: (region, "1")).count(store="counts")
    regions.to_stream().to("out", value=ms.serdes.int64)
    plan = continued(builder.build().plan("app"), {0: ComparedPart(("gone",), (), 1)})
    text = started_text(plan, lay_out(plan, {"people": 3}), "app")
    assert text == STARTED
    assert "Sub-topology: 0" not in str(plan)


def test_the_start_report_shows_where_stores_and_commits_are_kept() -> None:
    builder = ms.StreamsBuilder()
    kept = ms.stores.options("counts", engine="rocksdb", changelog="kafka")
    builder.stream("in").group_by_key().count(store=kept)
    plan = builder.build().plan("app")
    text = started_text(plan, lay_out(plan, {"in": 3}), "app", commits=2, given={"segment.ms": "9"})
    assert (
        "keeps  counts (timestamped-key-value string -> int64, engine rocksdb, changelog app-counts-changelog)"
        in text
    )
    assert text.splitlines()[-2:] == [
        "  internal topic app-counts-changelog (3 partitions, cleanup.policy=compact, message.timestamp.type=CreateTime, segment.ms=9)",
        "  internal topic app-commits (2 partitions, cleanup.policy=compact, segment.bytes=52428800, segment.ms=9)",
    ]
