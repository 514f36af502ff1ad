"""A program that counts keys until it is told to stop, as a user would write one; started and killed by test_restart.

    python counting.py '{"application_id": ..., "source": ..., "sink": ..., "settings": {...}}'

Its last line on standard output is the metrics of the run as JSON, which a killed program does not get to write.
"""

from __future__ import annotations

import json
import sys

import penstock as ps


def topology(source: str, sink: str) -> ps.Topology:
    """Count words; the words of a line meet in the shuffle, the counts are state."""
    builder = ps.StreamsBuilder()
    words = builder.stream(source).flat_map_values(str.split)
    words.group_by(lambda _, word: word).count(store="counts").to_stream().to(sink, value=ps.serdes.int64)
    return builder.build()


def main(application_id: str, source: str, sink: str, settings: dict[str, object]) -> None:
    """Run until SIGTERM or SIGINT."""
    result = ps.Application(application_id, topology(source, sink), **settings).run()
    sys.stdout.write(json.dumps(result.metrics()) + "\n")


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
