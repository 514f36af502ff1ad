from __future__ import annotations

import millstream as ms
from millstream.core.engine.threads import ThreadFigures
from millstream.drivers.spark.worker.report import Report, report_of
from unit.helpers import Host, one_processor, processing


def test_crosses_the_wire() -> None:
    report = Report(
        "0_3",
        {"in": {"0": 5}},
        wake_at_ms=9,
        stream_time_ms=7,
        processed=3,
        sent=2,
        dropped={"process error": 1},
        punctuated=4,
        first_record_ms=8,
        state_bytes=100,
        restored=6,
        notices=["ä"],
        threads=ThreadFigures((3, 2), ended=1),
    )
    assert Report.decode(report.encode()) == report
    assert Report.decode(Report("0_0").encode()) == Report("0_0")


def test_is_made_of_an_outcome() -> None:
    def init(context: ms.ProcessorContext) -> None:
        context.schedule(10, ms.wall_clock, lambda now: None)

    def step(context: ms.ProcessorContext, record: ms.Record) -> None:
        if record.value == "bad":
            raise LookupError
        context.forward(record)

    host = Host(one_processor(processing(step, init=init)), policies=ms.ErrorPolicies(process="skip"))
    host.feed("in", [("a", "1", 5), ("b", "bad", 6)], partition=2)
    outcome = host.step(now_ms=25)
    report = report_of(ms.TaskId(0, 0), outcome, state_bytes=7)
    assert Report.decode(report.encode()) == Report(
        "0_0",
        {"in": {"2": 2}},
        wake_at_ms=30,
        stream_time_ms=6,
        processed=2,
        sent=1,
        dropped={"process error": 1},
        punctuated=1,
        state_bytes=7,
        notices=list(outcome.notices),
    )
