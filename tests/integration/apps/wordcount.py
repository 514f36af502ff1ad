"""Word count as a process of its own, for tests that kill it: ``python wordcount.py ID SERVERS LINES COUNTS HOME``."""

from __future__ import annotations

import sys

import penstock as ps


def topology(lines: str, counts: str) -> ps.Topology:
    """Count words; every update is written."""
    builder = ps.StreamsBuilder()
    words = builder.stream(lines).flat_map_values(str.split).group_by(lambda _, word: word)
    words.count(store="counts").to_stream().to(counts, value=ps.serdes.int64)
    return builder.build()


if __name__ == "__main__":
    application_id, servers, lines, counts, home = sys.argv[1:]
    ps.Application(
        application_id,
        topology(lines, counts),
        bootstrap_servers=servers,
        state_dir=home,
        master="local[2]",
        max_batch_records=400,
        spark={"spark.ui.enabled": "false"},
    ).run()
