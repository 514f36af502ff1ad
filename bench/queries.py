"""``python -m bench.queries``: what queries of a store cost the micro-batches of the application, and how long they take.

``count`` gets the same number of updates again and again, in rounds of three kinds:

* ``alone``: nothing is asked;
* ``stub``: a thread of the program calls a function that does nothing, at a fixed rate, with random keys;
* ``queried``: the same thread reads the keys from the store.

A thread that asks thousands of times per second takes processor time itself, and interrupts micro-batches that keep all cores busy. The
rounds with the stub show how much, so the difference between the other two is the cost of the answers. With ``--cores 1``, Spark leaves
the other cores to the thread. The three rounds of each *turn* are in random order: the log is compacted every few micro-batches, which
would otherwise always hit the same kind.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

import millstream as ms
from bench.load import Workload, key_bytes, produce
from bench.ours import await_processed, await_progress, batches_s, running
from bench.stage import Stage, full_speed_stage

KEYS: Final = 200_000
UPDATES: Final = 20_000
ALONE, STUB, QUERIED = KINDS = ("alone", "stub", "queried")
_WARMUPS: Final = 2
_PAUSE_S: Final = 0.005
"""The time between two wake-ups of the thread. Each interrupts a micro-batch: every millisecond, they cost more than the answers."""


@dataclass
class Rounds:
    """What the rounds of one kind have shown.

    Attributes:
        batch_s: How long the micro-batches of each round took, seconds.
        used_s: Processor time of the program in each round, seconds.
        calls_ms: How long each call took, milliseconds.
        asked_s: How long calls were made, seconds.
    """

    batch_s: list[float] = field(default_factory=list)
    used_s: list[float] = field(default_factory=list)
    calls_ms: list[float] = field(default_factory=list)
    asked_s: float = 0.0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.queries")
    parser.add_argument("--rounds", type=int, default=40, help="of each of the three kinds")
    parser.add_argument("--rate", type=int, default=5_000, help="gets per second")
    parser.add_argument("--cores", type=int, default=2, help="cores of Spark")
    parser.add_argument("--out", type=Path, default=Path("build/queries.json"))
    options = parser.parse_args(arguments)
    with full_speed_stage(UPDATES) as stage:
        result = figures(measure(stage, options.rounds, options.rate, options.cores))
    print(json.dumps(result), flush=True)
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def measure(stage: Stage, turns: int, rate: int, cores: int) -> Mapping[str, Rounds]:
    """Return the rounds of each kind."""
    servers, source, sink = stage.kafka.bootstrap_servers, stage.topic("input"), stage.topic("output")
    found = {kind: Rounds() for kind in KINDS}
    chance, processed = random.Random(turns), KEYS
    produce(servers, source, [[(key_bytes(key), b"v") for key in range(KEYS)]])
    with running("count", servers, source, sink, master=f"local[{cores}]") as app:
        await_processed(app, processed)
        read = app.store("counts").get
        calls: dict[str, Callable[[bytes], object] | None] = {ALONE: None, STUB: _nothing, QUERIED: read}
        for turn in range(-_WARMUPS, turns):
            for kind in chance.sample(KINDS, len(KINDS)):
                app.pause()
                produce(servers, source, Workload(UPDATES, KEYS, seed=processed).blocks())
                processed += UPDATES
                _run(app, processed, calls[kind], rate, found[kind] if turn >= 0 else Rounds())
    return found


def _run(
    app: ms.RunningApplication,
    processed: int,
    call: Callable[[bytes], object] | None,
    rate: int,
    rounds: Rounds,
) -> None:
    """Process what is in the topic, with calls at a rate in the meantime."""
    before = app.metrics()["batches"]
    with calling(call, rate) as calls_ms:
        began, used_before = time.monotonic(), time.process_time()
        app.resume()
        await_processed(app, processed)
        after = app.metrics()["batches"]
        await_progress(app, after - 1)
        rounds.asked_s += time.monotonic() - began
        rounds.used_s.append(time.process_time() - used_before)
    rounds.calls_ms += calls_ms
    rounds.batch_s.append(sum(batches_s(app, before, after)))


def figures(rounds: Mapping[str, Rounds]) -> dict[str, Any]:
    """Return medians, ratios and processor times.

    ``core_us`` is the processor time of the program that a call costs, microseconds. For the stub, it is the difference between the rounds
    with the stub and without calls. For a get, it is what a call of a get costs beyond a call of the stub; it includes the opening of a
    view after each commit. A pair is two rounds of the same turn.
    """
    alone, stub, queried = (rounds[kind] for kind in KINDS)
    calls_s, gets_s = (
        (sum(each.used_s) - sum(alone.used_s)) / max(len(each.calls_ms), 1) for each in (stub, queried)
    )
    gets = queried.calls_ms
    return {
        "gets_per_s": round(len(gets) / queried.asked_s),
        "core_us": {"stub": round(1e6 * calls_s, 1), "get": round(1e6 * (gets_s - calls_s), 1)},
        "get_ms": {f"p{p:g}": round(float(np.percentile(gets, p)), 3) for p in (50, 99, 99.9, 100)},
        "batch_s": {kind: round(float(np.median(rounds[kind].batch_s)), 4) for kind in KINDS},
        "ratio": {
            "queried/stub": ratios(queried.batch_s, stub.batch_s),
            "queried/alone": ratios(queried.batch_s, alone.batch_s),
        },
    }


def ratios(ours: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Return the ratio of the medians, and the median and the largest ratio of the pairs."""
    pairs = np.array(ours) / np.array(others)
    return {
        "medians": round(float(np.median(ours) / np.median(others)), 3),
        "pairs_median": round(float(np.median(pairs)), 3),
        "pairs_worst": round(float(np.max(pairs)), 3),
    }


def _nothing(key: bytes) -> object:
    """Do as much as an answer without any work."""
    return None


@contextmanager
def calling(call: Callable[[bytes], object] | None, rate: int) -> Iterator[list[float]]:
    """Call a function with random keys at a rate in the meantime; yields how long each call took, milliseconds, complete at the end."""
    taken: list[float] = []
    over = threading.Event()
    thread = None if call is None else threading.Thread(target=_call, args=(call, rate, over, taken))
    if thread is not None:
        thread.start()
    try:
        yield taken
    finally:
        over.set()
        if thread is not None:
            thread.join()


def _call(call: Callable[[bytes], object], rate: int, over: threading.Event, taken: list[float]) -> None:
    chance, began = random.Random(rate), time.monotonic()
    while not over.wait(_PAUSE_S):
        due = int((time.monotonic() - began) * rate)
        while len(taken) < due and not over.is_set():
            key = key_bytes(chance.randrange(KEYS))
            asked = time.perf_counter()
            call(key)
            taken.append((time.perf_counter() - asked) * 1000)


if __name__ == "__main__":
    sys.exit(main())
