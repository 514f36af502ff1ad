"""``python -m bench.ranges``: one partition, without key ranges and with them.

Each pair runs a job on a topic with one partition, without ranges and with ``parallelism``, one after the other, and then Kafka
Streams, if it knows the job. Outputs are compared with what must come out.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from bench import check
from bench.load import Workload, produce
from bench.processes import run_ours
from bench.race import run_peer
from bench.stage import Stage, full_speed_stage

_TIMEOUT_S: Final = 900.0


class Case(NamedTuple):
    """What a pair processes.

    Attributes:
        job: The application.
        keys: Different keys of the input; None for a tenth of the records.
        with_peer: Whether Kafka Streams knows the job.
        cache_bytes: Size of the caches, also of Kafka Streams. With 0 every update is forwarded.
    """

    job: str
    records: int
    keys: int | None = None
    with_peer: bool = False
    cache_bytes: int = 0


CASES: Final = {
    "count": Case("count", 1_000_000, with_peer=True),
    "busy-processor": Case("busy-processor", 200_000),
    "hot-key": Case("count", 2_000_000, keys=1, with_peer=True, cache_bytes=10 << 20),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.ranges")
    parser.add_argument("--parallelism", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", choices=CASES, nargs="*", default=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("build/ranges.json"))
    options = parser.parse_args(arguments)
    results = {}
    with full_speed_stage(max(case.records for case in CASES.values())) as stage:
        for name in options.only:
            case = CASES[name]
            of_case = replace(stage, records=case.records)
            results[name] = _pairs(of_case, case, options.pairs, options.parallelism)
            print(f"{name}: {json.dumps(results[name]['ratio'])}", flush=True)
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def _pairs(stage: Stage, case: Case, pairs: int, parallelism: int) -> dict[str, Any]:
    source, job = stage.topic("input", 1), case.job
    workload = Workload(stage.records, case.keys or stage.keys)
    produce(stage.kafka.bootstrap_servers, source, workload.blocks())
    wanted = check.expected("processor", workload)
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(pairs):
        for name, workers in (("without", 1), ("with", parallelism)):
            sink = stage.topic(name)
            arguments = {"job": job, "source": source, "sink": sink, "records": stage.records}
            arguments |= {"servers": stage.kafka.bootstrap_servers, "parallelism": workers}
            arguments["cache_bytes"] = case.cache_bytes
            figures = run_ours("race", arguments, scratch=stage.directory("run"), timeout_s=_TIMEOUT_S)
            output = check.digest("count", check.read(stage.kafka.bootstrap_servers, sink))
            if case.cache_bytes:  # then only the last value of each key is certain
                output = replace(output, records=wanted.records)
            if wrong := check.difference(output, wanted):
                raise SystemExit(f"{sink}: {wrong}")
            found.setdefault(name, []).append(figures)
        if case.with_peer:
            sink = stage.topic("peer")
            found.setdefault("peer", []).append(
                run_peer(stage, job, source, sink, stage.records, case.cache_bytes)
            )
        print(job, {name: round(runs[-1]["records_per_s"]) for name, runs in found.items()}, flush=True)
    ratios = [
        after["records_per_s"] / before["records_per_s"]
        for before, after in zip(found["without"], found["with"])
    ]
    return {"ratio": {"median": median(ratios), "min": min(ratios), "max": max(ratios)}, "runs": found}


if __name__ == "__main__":
    sys.exit(main())
