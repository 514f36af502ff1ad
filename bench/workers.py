"""``python -m bench.workers``: what a change of the number of workers costs, under a lag.

``count`` has a topic with one partition and no key ranges at first. Then the number of workers changes, each time while several hundred
thousand records wait. For each change, the figures are the lag at the command, how long the command took, and how long no micro-batch was
committed, beside the usual time between two commits. Outputs are compared with what must come out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import millstream as ms
from bench import check
from bench.load import Workload, key_bytes, produce
from bench.ours import await_processed, running, wait_until
from bench.sampling import sampling
from bench.stage import Stage, full_speed_stage

JOBS: Final = {"at_least_once": "count", "exactly_once": "exactly-once-count"}
_CHANGES: Final[tuple[int, ...]] = (4, 16, 3, 1)
_UPDATES: Final = 600_000
BATCH: Final = 100_000
_POLL_S: Final = 0.005


@dataclass(frozen=True)
class Commit:
    """The state of the application when a micro-batch was seen to be committed."""

    seconds: float
    workers: int
    lag: int


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.workers")
    parser.add_argument("--keys", type=int, nargs="*", default=[1_000, 5_000_000])
    parser.add_argument("--guarantees", choices=JOBS, nargs="*", default=list(JOBS))
    parser.add_argument("--out", type=Path, default=Path("build/workers.json"))
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    with full_speed_stage(_UPDATES) as stage:
        for guarantee in options.guarantees:
            for keys in options.keys:
                results[f"{guarantee}, {keys:,} keys"] = found = _changed(stage, guarantee, keys)
                print(guarantee, keys, json.dumps(found), flush=True)
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def produce_keys(servers: str, topic: str, keys: int) -> None:
    """Send one record for each key."""
    numbers = range(0, keys, BATCH)
    produce(
        servers,
        topic,
        ([(key_bytes(key), b"v") for key in range(n, min(n + BATCH, keys))] for n in numbers),
    )


def _changed(stage: Stage, guarantee: str, keys: int) -> list[dict[str, Any]]:
    """Return the figures of each change."""
    servers = stage.kafka.bootstrap_servers
    source, sink = stage.topic("input", 1), stage.topic("output")
    produce_keys(servers, source, keys)
    counts, processed, found = Counter(map(key_bytes, range(keys))), keys, []
    settings = {"processing_guarantee": guarantee, "max_batch_records": BATCH}
    with running(JOBS[guarantee], servers, source, sink, **settings) as app:
        await_processed(app, processed)
        for seed, workers in enumerate(_CHANGES):
            workload = Workload(_UPDATES, keys, seed=seed)
            counts.update(key for block in workload.blocks() for key, _ in block)
            app.pause()
            produce(servers, source, workload.blocks())
            app.resume()
            await_processed(app, processed + BATCH)
            found.append(_change(app, workers))
            processed += _UPDATES
            await_processed(app, processed)
    check_counts(servers, sink, processed, counts)
    return found


def check_counts(servers: str, sink: str, records: int, counts: Mapping[bytes, int]) -> None:
    """Compare the output with the counts of all keys, or end the program."""
    wanted = {key: b"%d" % count for key, count in counts.items()}
    if wrong := check.wrong_output("count", check.Digest(records, wanted, 0), servers, sink):
        raise SystemExit(f"{sink}: {wrong}")


def _change(app: ms.RunningApplication, workers: int) -> dict[str, Any]:
    """Change the number of workers; return how long it took."""
    with commits_of(app) as commits:
        lag, began = sum(app.status().lag.values()), time.monotonic()
        app.parallelism(workers)
        took_s = time.monotonic() - began
        seen = len(commits)
        wait_until(
            app,
            lambda: len(commits) >= seen + 3 or not any(app.status().lag.values()),
            "some micro-batches to compare with",
            _POLL_S,
        )
    gaps = [after.seconds - before.seconds for before, after in pairwise(commits)]
    return {
        "workers": app.status().workers,
        "lag": lag,
        "command_s": round(took_s, 2),
        "longest_between_commits_s": round(max(gaps), 2),
        "usual_between_commits_s": round(median(gaps[-3:]), 2),
    }


@contextmanager
def commits_of(app: ms.RunningApplication) -> Iterator[list[Commit]]:
    """Collect the commits of micro-batches; begins with now."""
    commits: list[Commit] = []
    batches = -1

    def watch() -> None:
        nonlocal batches
        if (now := app.metrics()["batches"]) != batches:
            batches, status = now, app.status()
            commits.append(Commit(time.monotonic(), status.workers, sum(status.lag.values())))

    watch()
    with sampling(watch, _POLL_S):
        yield commits


if __name__ == "__main__":
    sys.exit(main())
