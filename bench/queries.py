"""``python -m bench.queries``: what queries of a store cost the micro-batches of the application, and how long they take.

``count`` gets the same number of updates again and again. In half of the rounds, a thread of the program reads random keys of the
store at a fixed rate. Rounds of both kinds are in random order: the log is compacted every few micro-batches, which would
otherwise always hit the same kind.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

import millstream as ms
from bench.load import Workload, key_bytes, produce
from bench.ours import await_processed, await_progress, batches_s, running
from bench.stage import Stage, full_speed_stage

KEYS: Final = 200_000
UPDATES: Final = 20_000
_WARMUPS: Final = 6
_PAUSE_S: Final = 0.001


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.queries")
    parser.add_argument("--rounds", type=int, default=40, help="with queries, and as many without")
    parser.add_argument("--rate", type=int, default=5_000, help="gets per second")
    parser.add_argument("--out", type=Path, default=Path("build/queries.json"))
    options = parser.parse_args(arguments)
    with full_speed_stage(UPDATES) as stage:
        result = measure(stage, options.rounds, options.rate)
    print(json.dumps(result), flush=True)
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def measure(stage: Stage, rounds: int, rate: int) -> dict[str, Any]:
    """Return how long micro-batches took with and without queries, seconds, and gets, milliseconds.

    ``get_core_us`` is the processor time of the program that a get costs, microseconds: the difference between the rounds. It includes the
    thread that asks, and the opening of a view after each commit.
    """
    servers, source, sink = stage.kafka.bootstrap_servers, stage.topic("input"), stage.topic("output")
    batches: dict[bool, list[float]] = {False: [], True: []}
    gets: list[float] = []
    used: dict[bool, list[float]] = {False: [], True: []}
    asked_s, processed = 0.0, KEYS
    produce(servers, source, [[(key_bytes(key), b"v") for key in range(KEYS)]])
    with running("count", servers, source, sink) as app:
        await_processed(app, processed)
        kinds = [True, False] * rounds
        random.Random(rounds).shuffle(kinds)
        for number, queried in enumerate([*[False, True] * (_WARMUPS // 2), *kinds]):
            measured = number >= _WARMUPS
            app.pause()
            before = app.metrics()["batches"]
            produce(servers, source, Workload(UPDATES, KEYS, seed=number).blocks())
            processed += UPDATES
            with asking(app, rate if queried else 0) as taken:
                began, used_before = time.monotonic(), time.process_time()
                app.resume()
                await_processed(app, processed)
                after = app.metrics()["batches"]
                await_progress(app, after - 1)
                seconds = time.monotonic() - began
                used_s = time.process_time() - used_before
            if measured:
                used[queried].append(used_s)
                batches[queried].append(sum(batches_s(app, before, after)))
                gets += taken
                asked_s += seconds if queried else 0
    return {
        "gets_per_s": round(len(gets) / asked_s),
        "get_core_us": round(1e6 * (sum(used[True]) - sum(used[False])) / len(gets), 1),
        "get_ms": {f"p{p:g}": round(float(np.percentile(gets, p)), 3) for p in (50, 99, 99.9, 100)},
        "batch_s": {name: _summary(batches[key]) for name, key in (("alone", False), ("queried", True))},
        "ratio": {
            "mean": round(float(np.mean(batches[True]) / np.mean(batches[False])), 3),
            "median": round(float(np.median(batches[True]) / np.median(batches[False])), 3),
        },
    }


def _summary(seconds: list[float]) -> dict[str, float]:
    return {"mean": round(float(np.mean(seconds)), 4), "median": round(float(np.median(seconds)), 4)}


@contextmanager
def asking(app: ms.RunningApplication, rate: int) -> Iterator[list[float]]:
    """Read random keys at a rate in the meantime; yields how long each get took, milliseconds, complete at the end."""
    taken: list[float] = []
    over = threading.Event()
    thread = threading.Thread(target=_ask, args=(app.store("counts"), rate, over, taken))
    if rate:
        thread.start()
    try:
        yield taken
    finally:
        over.set()
        if rate:
            thread.join()


def _ask(store: ms.StoreReader[bytes, int], rate: int, over: threading.Event, taken: list[float]) -> None:
    chance, began = random.Random(rate), time.monotonic()
    while not over.wait(_PAUSE_S):
        due = int((time.monotonic() - began) * rate)
        while len(taken) < due and not over.is_set():
            key = key_bytes(chance.randrange(KEYS))
            asked = time.perf_counter()
            store.get(key)
            taken.append((time.perf_counter() - asked) * 1000)


if __name__ == "__main__":
    sys.exit(main())
