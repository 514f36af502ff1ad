"""``python -m bench``: run the benchmark, print tables, write the file of results.

Ends with code 1 if an output was wrong. A bar that is not met is shown and does not fail the run: on a busy machine a
single run proves little.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
from rich.console import Console

from bench import check
from bench.calls import PARTS as CALL_PARTS
from bench.calls import calls
from bench.jobs import JOBS
from bench.join import join
from bench.latency import latency
from bench.machine import this_machine
from bench.memory import memory
from bench.processes import ROOT, ChildError
from bench.race import WITH_ROWS, Pair, RaceResult, fill, fill_rows, race
from bench.report import Results
from bench.stage import Stage, full_speed_stage
from bench.states import PARTS as STATE_PARTS
from bench.states import states
from bench.store_size import store_size
from bench.transactions import transactions

PARTS = (*JOBS, "latency", "store-size", "memory", "transactions", "join", *CALL_PARTS, *STATE_PARTS)
_BUSY_PERCENT = 15.0
_PLAIN_WIDTH = 130
_DISTURBED = 0.05
"""The share of the machine that others may take during a pair."""
_MORE_ATTEMPTS = 3


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; give the exit code."""
    options = _options(arguments)
    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    load = psutil.cpu_percent(interval=2.0)
    if load > _BUSY_PERCENT:
        console.print(f"[yellow]other programs keep this machine {load:.0f} % busy: expect noise[/]")
    results, failed = Results(this_machine(), load, options.pairs), False
    with full_speed_stage(options.records) as stage:
        try:
            _run(stage, options, results, console)
        except ChildError as error:
            console.print(str(error), style="red", markup=False, highlight=False)
            failed = True
    results.show(console)
    results.write(options.out)  # of the parts that were measured
    console.print(f"written to {options.out}")
    return 1 if failed or results.wrong else 0


def _run(stage: Stage, options: argparse.Namespace, results: Results, console: Console) -> None:
    only = options.only
    jobs = [job for job in JOBS if job in only]
    if jobs or "transactions" in only:
        console.print(f"input: {stage.records:,} records over {stage.keys:,} keys")
        source, workload = fill(stage)
    for job in jobs:
        if job in WITH_ROWS:
            fill_rows(stage, source, workload)
        wanted = check.expected(job, workload)
        pairs = []
        for number in range(1, results.pairs + 1):
            pairs.append(pair := _undisturbed(partial(race, stage, job, source, workload, wanted), console))
            console.print(
                f"{job} {number}/{results.pairs}: ours {pair.ours.records_per_s:,.0f}, peer {pair.peer.records_per_s:,.0f} "
                f"records/s, ratio {pair.ratio:.2f}"
            )
        results.races.append(RaceResult(job, workload.records, tuple(pairs)))
    if "latency" in only:
        console.print("latency: ten records at a time")
        results.latency = latency(stage)
    if "store-size" in only:
        console.print("store-size: the same updates on a small and a large store")
        results.store_size = store_size(stage, options.keys)
    if "memory" in only:
        console.print("memory: the workers over ten rounds of records")
        results.memory = memory(stage)
    if "transactions" in only:
        console.print("transactions: the same batches at least once and exactly once")
        results.transactions = transactions(stage, source, results.pairs)
    if "join" in only:
        console.print("join: a backlog of two topics, in the order of time and in whatever order it comes")
        results.join = join(stage, results.pairs)
    for part, in_flight in CALL_PARTS.items():
        if part in only:
            console.print(f"{part}: a call per record, {in_flight:,} in flight")
            results.calls.append(found := calls(stage, in_flight, results.pairs))
            for of_calls in found.pairs:
                console.print(
                    f"ours {of_calls.ours.rate:,.0f}, peer {of_calls.peer.rate:,.0f} results/s, ratio {of_calls.ratio:.2f}"
                )
    for part in STATE_PARTS:
        if part in only:
            console.print(f"{part}: the state of a task, without Spark")
            results.states += states(stage, part)


def _undisturbed(run: Callable[[], Pair], console: Console) -> Pair:
    """Run a pair, and run it again if other programs disturbed it; the last attempt counts."""
    pair = run()
    for _ in range(_MORE_ATTEMPTS):
        if pair.others <= _DISTURBED:
            break
        console.print(f"others took {pair.others:.0%} of the machine: the pair is run again")
        pair = run()
    return pair


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__.split("\n")[0] if __doc__ else None
    )
    parser.add_argument(
        "--only", type=_parts, default=list(PARTS), help=f"parts to run, of {','.join(PARTS)}"
    )
    parser.add_argument("--pairs", type=_positive, default=3, help="pairs per race (3)")
    parser.add_argument(
        "--records",
        type=_positive,
        default=1_000_000,
        help="records of the race; sizes the rest too (1000000)",
    )
    parser.add_argument("--keys", type=_positive, help="keys of the large store of store-size (5000000)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results.json", help="file of results")
    return parser.parse_args(arguments)


def _parts(text: str) -> list[str]:
    wanted = text.split(",")
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    return wanted


def _positive(text: str) -> int:
    number = int(text.replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
