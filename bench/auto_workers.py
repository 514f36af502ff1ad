"""``python -m bench.auto_workers``: how ``parallelism="auto"`` follows a lag, and its end.

``count`` has a topic with one partition. It begins with a record for each key and an update of each, all of which wait, and continues with
a hundred records a second until there is one worker again. For each change of the number of workers, the figures are when it was committed,
the lag, and how long no micro-batch was committed. Outputs are compared with what must come out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bench.load import Workload, key_bytes, produce
from bench.ours import await_processed, running
from bench.stage import Stage, full_speed_stage
from bench.workers import BATCH, JOBS, Commit, check_counts, commits_of, produce_keys

_TRICKLE: Final = 100
_TIME_TO_FALL_S: Final = 180.0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.auto_workers")
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--guarantees", choices=JOBS, nargs="*", default=list(JOBS))
    parser.add_argument("--out", type=Path, default=Path("build/auto-workers.json"))
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    with full_speed_stage(2 * options.keys) as stage:
        for guarantee in options.guarantees:
            results[guarantee] = found = _followed(stage, guarantee, options.keys)
            print(guarantee, json.dumps(found), flush=True)
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def _followed(stage: Stage, guarantee: str, keys: int) -> list[dict[str, Any]]:
    """Return the figures of each change."""
    servers = stage.kafka.bootstrap_servers
    source, sink = stage.topic("input", 1), stage.topic("output")
    counts, processed = Counter(map(key_bytes, range(keys))), keys

    def send(workload: Workload) -> None:
        nonlocal processed
        counts.update(key for block in workload.blocks() for key, _ in block)
        produce(servers, source, workload.blocks())
        processed += workload.records

    produce_keys(servers, source, keys)
    send(Workload(keys, keys, seed=0))
    settings = {"processing_guarantee": guarantee, "max_batch_records": BATCH, "parallelism": "auto"}
    with running(JOBS[guarantee], servers, source, sink, **settings) as app, commits_of(app) as commits:
        await_processed(app, processed)
        deadline = time.monotonic() + _TIME_TO_FALL_S
        while commits[-1].workers > 1:
            if time.monotonic() > deadline:
                raise SystemExit(f"{guarantee}: {commits[-1].workers} workers with little to do")
            send(Workload(_TRICKLE, keys, seed=processed))
            await_processed(app, processed)
            time.sleep(1.0)  # the rate of the records that still arrive
    check_counts(servers, sink, processed, counts)
    return _changes(commits)


def _changes(commits: list[Commit]) -> list[dict[str, Any]]:
    return [
        {
            "workers": [before.workers, after.workers],
            "after_s": round(after.seconds - commits[0].seconds, 1),
            "lag": before.lag,
            "between_commits_s": round(after.seconds - before.seconds, 2),
        }
        for before, after in pairwise(commits)
        if before.workers != after.workers
    ]


if __name__ == "__main__":
    sys.exit(main())
