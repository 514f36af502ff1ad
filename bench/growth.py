"""``python -m bench.growth``: how ``count`` grows with cores, executors, partitions and topics.

Each variant counts the same records, in a process of its own. The order of the variants is random in each round. Outputs are compared
with what must come out.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench import check
from bench.load import Workload, produce
from bench.processes import run_ours
from bench.stage import Stage, full_speed_stage

_TIMEOUT_S: Final = 900.0


@dataclass(frozen=True)
class Variant:
    """Where and from what a run counts.

    Attributes:
        master: Spark master.
        partitions: Partitions of each topic.
        topics: Topics, which the source reads as one stream.
    """

    master: str = "local[2]"
    partitions: int = 4
    topics: int = 1

    def __str__(self) -> str:
        return f"{self.master}, {self.topics} x {self.partitions} partitions"


VARIANTS: Final = (
    Variant(),
    Variant("local[1]"),
    Variant("local-cluster[2,1,2048]"),
    *(Variant(partitions=count) for count in (1, 32, 200)),
    Variant(topics=50),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=Path("build/growth.json"))
    options = parser.parse_args(arguments)
    with full_speed_stage(options.records) as stage:
        found = measure(stage, options.rounds)
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    for name, runs in found.items():
        rate, used = (median(run[figure] for run in runs) for figure in ("records_per_s", "processor_s"))
        print(f"{name}: {rate:,.0f} records/s, {used:.1f} core-seconds without the start", flush=True)
    return 0


def measure(stage: Stage, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Return the runs of each variant."""
    workload, servers, chance = (
        Workload(stage.records, stage.keys),
        stage.kafka.bootstrap_servers,
        random.Random(1),
    )
    wanted = check.expected("count", workload)
    blocks = list(workload.blocks())
    layouts = {(variant.topics, variant.partitions) for variant in VARIANTS}
    sources = {layout: _fill(stage, blocks, *layout) for layout in layouts}
    found: dict[str, list[dict[str, Any]]] = {str(variant): [] for variant in VARIANTS}
    for _ in range(rounds):
        for variant in chance.sample(VARIANTS, len(VARIANTS)):
            sink = stage.topic("counts")
            arguments: dict[str, Any] = {
                "job": "count",
                "servers": servers,
                "source": sources[variant.topics, variant.partitions],
            }
            arguments |= {"sink": sink, "records": stage.records, "master": variant.master}
            run = run_ours("race", arguments, scratch=stage.directory("run"), timeout_s=_TIMEOUT_S)
            if wrong := check.wrong_output("count", wanted, servers, sink):
                raise SystemExit(f"{variant}: {wrong}")
            used = {"processor_s": run["processor_s_without_start"], "idle": run["usage"]["idle"]}
            found[str(variant)].append({"records_per_s": run["records_per_s"], **used})
            print(variant, found[str(variant)][-1], flush=True)
    return found


def _fill(stage: Stage, blocks: list[list[tuple[bytes, bytes]]], topics: int, partitions: int) -> list[str]:
    """Create topics and divide the records among them."""
    names = [stage.topic("input", partitions) for _ in range(topics)]
    for number, name in enumerate(names):
        produce(stage.kafka.bootstrap_servers, name, (block[number::topics] for block in blocks))
    return names


if __name__ == "__main__":
    sys.exit(main())
