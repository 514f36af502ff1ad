from __future__ import annotations

import re

import millstream as ms
from millstream.core.engine.records.readiness import Waiting
from millstream.core.engine.threaded_nodes import ThreadFigures
from millstream.core.model.ids import TopicPartition
from millstream.core.runtime.task_report import (
    BufferedQueue,
    CallReport,
    HotKeySample,
    StateReport,
    TaskReport,
)
from millstream.core.state.segments.log import Manifest, Segment
from millstream.core.taps.samples import Sample, TapReport
from millstream.drivers.spark.executor.measures import TASK_METRICS, StepFacts
from millstream.drivers.spark.executor.report_building import report_of
from unit.helpers import Host, processing, processor_topology


def test_a_report_is_decoded_as_it_was_encoded() -> None:
    report = TaskReport(
        "0_3",
        {TopicPartition("in", 0): 5},
        wake_at_ms=9,
        stream_time_ms=7,
        measured=(("task_process_total", ("0_3",), 3), ("task_process_seconds_total", ("0_3",), 0.5)),
        first_record_ms=8,
        notices=("ä",),
        threads=ThreadFigures((3, 2), ended=1),
        waiting=Waiting(TopicPartition("other", 1), "idle", 6),
        buffered=(BufferedQueue("in", 0, "", 3, 90, 7),),
        given_up=(TopicPartition("other", 1),),
        calls=CallReport(running=2, queued=(1, 0), hottest=(HotKeySample("ask", "'k'", 5, 10, 10.0, 1),)),
        times={TopicPartition("in", 0): 7},
        shuffled={TopicPartition("again", 1): 1 << 31},
        state=StateReport(4, ("a", "b"), {"counts": {"time": 7}}),
        taps=(TapReport("n", 8, 2, (Sample("in", 0, 4, "k", {"v": [1]}, 6, (("h", None),), cut=True),)),),
    )
    assert TaskReport.decode(report.encode()) == report
    assert TaskReport.decode(TaskReport("0_0").encode()) == TaskReport("0_0")


def test_the_repr_of_a_report_hides_the_samples_of_taps() -> None:
    tap = TapReport("n", 8, 1, (Sample("in", 0, 4, "k", "secret", 6),))
    assert "secret" not in repr(TaskReport("0_3", taps=(tap,)))


def test_a_report_is_built_from_a_step_outcome() -> None:
    def init(context: ms.ProcessorContext) -> None:
        context.schedule(10, ms.wall_clock, lambda now: None)

    def step(context: ms.ProcessorContext, record: ms.Record) -> None:
        if record.value == "bad":
            raise LookupError
        context.forward(record)

    host = Host(processor_topology(processing(step, init=init)), policies=ms.ErrorPolicies(process="skip"))
    host.feed("in", [("a", "1", 5), ("b", "bad", 6)], partition=2)
    outcome = host.step(now_ms=25)
    manifest = Manifest(segments={("counts/rows", 0): (Segment(1, 0, 1, 7, base=True),)})
    facts = StepFacts("0_0", outcome, read={"in": (2, 9)}, removed={"gone": 5}, restored=3, manifest=manifest)
    report = report_of(facts)
    assert TaskReport.decode(report.encode()) == TaskReport(
        "0_0",
        {TopicPartition("in", 2): 2},
        wake_at_ms=30,
        stream_time_ms=6,
        notices=(*report.notices[:1], *outcome.notices),
        measured=(
            ("task_dropped_records_total", ("0_0", "unfinished record of a removed operator"), 5),
            ("topic_records_consumed_total", ("0_0", "in"), 2),
            ("topic_bytes_consumed_total", ("0_0", "in"), 9),
            ("task_process_total", ("0_0",), 2),
            ("topic_records_produced_total", ("0_0", "out"), 1),
            ("task_dropped_records_total", ("0_0", "process error"), 1),
            ("operator_failed_records_total", ("0_0", "worker"), 1),
            ("task_punctuate_total", ("0_0",), 1),
            ("task_stream_time_seconds", ("0_0",), 0.006),
            ("task_restore_total", ("0_0",), 3),
            ("store_bytes", ("0_0", "counts"), 7),
        ),
        state=StateReport(0, (), {}),
    )


def test_exported_metric_names_are_unique_and_valid_for_prometheus() -> None:
    names = [metric.exported for metric in TASK_METRICS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("millstream_[a-z_]+", name) for name in names)
