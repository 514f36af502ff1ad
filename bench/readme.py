"""The figures of the README and of the page of figures, written from the file of results: ``python -m bench.readme``.

Whoever changes one without the other fails a test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.pages import replaced
from bench.processes import ROOT

RESULTS: Final = ROOT / "bench" / "results.json"
README: Final = ROOT / "README.md"
FIGURES: Final = ROOT / "docs" / "reference" / "figures.md"
MARK: Final = "bench"
_JOBS: Final = {
    "count": "count per key, every update written",
    "map": "values to upper case",
    "windowed-count": "count per key and window of ten seconds",
    "session-count": "count per key and session, gap of five seconds",
    "stream-table-join": "each record with the row of its key",
    "processor": "Processor API: a store read and written per record",
    "exactly-once-count": "`count` exactly once; Kafka Streams commits every 100 ms",
}


def block(results: Mapping[str, Any]) -> str:
    """Return the figures as Markdown.

    Args:
        results: The content of the file of results.
    """
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Mapping[str, Any]) -> Iterator[str]:
    machine, jobs = results["machine"], results["jobs"]
    others = max(found["others"] for found in jobs.values())
    records = {found["records"] for found in jobs.values()}
    yield (
        f"Commit `{machine['commit']}`, {machine['cores']} cores, {machine['memory_gib']:g} GiB, {machine['system']}, Python "
        f"{machine['python']}, Java {machine['java']}, Spark {machine['spark']}, Kafka and"
    )
    yield (
        f"Kafka Streams {machine['kafka']}. {max(records):,} records over {max(records) // 10:,} keys, {results['pairs']} pairs of "
        f"runs per job. Other programs took less than "
        f"{int(others * 100) + 1} % of the machine in any run."
    )
    yield ""
    yield "| job | what | ratio to Kafka Streams: median (worst pair) | records/s, Millstream : Kafka Streams | core-seconds, Millstream : Kafka Streams |"
    yield "|---|---|---|---|---|"
    for job, found in jobs.items():
        ratio, used = found["ratio"], f"{found['processor_s']:.1f} : {found['peer_processor_s']:.1f}"
        figure = f"{ratio['median']:.2f} ({ratio['min']:.2f})"
        rates = f"{found['records_per_s']:,} : {found['peer_records_per_s']:,}"
        yield f"| `{job}` | {_JOBS[job]} | {figure} | {rates} | {used} |"
    yield ""
    yield (
        "Rates count from the first record to the last. Core-seconds are those of all processes of the program, including its start, which "
        "is most"
    )
    with_start = next(iter(jobs.values()))
    first = next(iter(jobs))
    yield (
        f"of those of Millstream. From program start to the last record, `{first}` takes {with_start['seconds_with_start']:.1f} s, "
        f"and {with_start['peer_seconds_with_start']:.1f} s in Kafka Streams."
    )


def spread(results: Mapping[str, Any]) -> str:
    """Return all pairs as Markdown, and the latency of small micro-batches.

    Args:
        results: The content of the file of results.
    """
    lines = [
        "| job | ratio of each pair | idle, Millstream : Kafka Streams | GC seconds, the same | start to end in s, the same |",
        "|---|---|---|---|---|",
    ]
    for job, found in results["jobs"].items():
        ratios = ", ".join(f"{pair['ratio']:.2f}" for pair in found["pairs"])
        sides = [[pair[side] for pair in found["pairs"]] for side in ("usage", "peer_usage")]
        idle = " : ".join(f"{median(used['idle'] for used in side):.0%}" for side in sides)
        gc = " : ".join(f"{median(used['gc_s'] for used in side):.2f}" for side in sides)
        ends = f"{found['seconds_with_start']:.1f} : {found['peer_seconds_with_start']:.1f}"
        lines.append(f"| `{job}` | {ratios} | {idle} | {gc} | {ends} |")
    if latency := results.get("latency"):
        batch, visible = latency["batch_s"], latency["visible_s"]
        lines += [
            "",
            (
                f"Ten records through a warm `count`: a micro-batch takes {batch['median']:.2f} s (at most {batch['max']:.2f}), and the results are "
                f"visible after {visible['median']:.2f} s (at most {visible['max']:.2f})."
            ),
        ]
    return "\n".join(lines) + "\n"


PAGES: Final[Mapping[Path, Callable[[Mapping[str, Any]], str]]] = {
    README: block,
    FIGURES: lambda results: block(results) + "\n" + spread(results),
}
"""What is written into which page."""


if __name__ == "__main__":
    for page, figures in PAGES.items():
        page.write_text(replaced(page.read_text(), MARK, figures(json.loads(RESULTS.read_text()))))
