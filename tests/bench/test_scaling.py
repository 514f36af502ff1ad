"""How the scaling benchmark computes its figures from Spark's events."""

from __future__ import annotations

import json

from bench.scaling import job_ms, phases_of


def test_job_times_are_added_up_per_micro_batch() -> None:
    def started(job: int, time_ms: int, batch: int | None) -> str:
        properties = {} if batch is None else {"streaming.sql.batchId": str(batch)}
        event = {
            "Event": "SparkListenerJobStart",
            "Job ID": job,
            "Submission Time": time_ms,
            "Properties": properties,
        }
        return json.dumps(event)

    def ended(job: int, time_ms: int) -> str:
        return json.dumps({"Event": "SparkListenerJobEnd", "Job ID": job, "Completion Time": time_ms})

    lines = [
        started(0, 10, 3),
        started(1, 11, None),
        ended(1, 500),
        ended(0, 40),
        started(2, 50, 3),
        ended(2, 55),
    ]
    assert job_ms(lines) == {3: 35}


def test_time_outside_the_job_is_attributed_to_the_driver() -> None:
    durations = {"latestOffset": 5, "walCommit": 7, "queryPlanning": 40, "addBatch": 900, "commitOffsets": 9}
    phases = phases_of({**durations, "triggerExecution": 980}, 700)
    assert (phases["reads and commit"], phases["job"], phases["total"]) == (200, 700, 980)
