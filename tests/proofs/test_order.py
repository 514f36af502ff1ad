"""Proof 1: despite overlapping and failing calls, the records of each key are called one after the other and complete once, in order.

There is one partition, calls take 0 to 5 ms, and one record in twenty fails twice. There are 10,000 uniformly distributed keys, or 1,000
keys that follow Zipf's law with exponent 1.1, of which the first has 18 % of all records. The tests check the journal of the calls and
the output topic, and compare the answers with those of a serial run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import millstream as ms
from integration.helpers import Apps, lag
from millstream.testing.kafka import ConsumedRecord

from .checks import completed_in_order, first_begin_and_last_end
from .enrichment import FAILS, Enrich, EnrichBatch, Keys, chains, fails, serial_run, spread_keys, zipf_keys
from .journal import BEGIN, END, FAILED, Journal, Lines, counts, open_calls, overlaps, read
from .results import write_result
from .sizes import sized

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.timeout(sized(300, 7_200)),
]

RETRY = ms.Retry(initial=20, jitter=0)
IN_FLIGHT = 100


def run(apps: Apps, path: Path, keys: Keys, function: object, **options: object) -> list[ConsumedRecord]:
    """Run calls for all records, and return the output."""
    source, sink = apps.topic("in", 1), apps.topic("out", 1)
    builder = ms.StreamsBuilder()
    answers = builder.stream(source).map_values_async(
        function, max_in_flight=IN_FLIGHT, retry=RETRY, **options
    )
    answers.to(sink)
    apps.kafka.produce(source, ((f"k{key}", str(number)) for number, key in enumerate(keys.tolist())))
    apps.run(builder.build())
    assert lag(apps.kafka, apps.id, source) == 0
    return apps.kafka.consume(sink)


def check_answers(keys: Keys, output: list[ConsumedRecord]) -> None:
    """Compare the chain of each key with that of the serial run."""
    seen = chains(((record.key or b"").decode(), (record.value or b"").decode()) for record in output)
    assert len(output) == len(keys)  # together with equal chains: each answer occurs once
    assert seen == serial_run(keys)


def check_attempts(keys: Keys, lines: Lines) -> None:
    """Check that each record completed exactly once, without unnecessary calls."""
    failing = np.array([fails(number) for number in range(len(keys))])
    assert (counts(lines, END, len(keys)) == 1).all()
    assert (counts(lines, FAILED, len(keys)) == np.where(failing, FAILS, 0)).all()
    assert (counts(lines, BEGIN, len(keys)) == np.where(failing, 1 + FAILS, 1)).all()


def check_no_overlap(keys: Keys, lines: Lines) -> None:
    """Check that no two records of a key were called at once, and that they completed in order."""
    assert overlaps(lines, keys[lines["number"]]) == 0
    assert completed_in_order(keys, lines)


def write_result_of_single_calls(name: str, keys: Keys, lines: Lines) -> None:
    """Write the result of a run with one record per call."""
    write_result(
        name,
        records=len(keys),
        keys=len(np.unique(keys)),
        calls=len(lines) // 2,
        most_open=max_open_calls(lines),
        calls_per_second=rate(lines),
    )


def max_open_calls(lines: Lines) -> int:
    """Return how many calls were open at once."""
    return int(open_calls(lines, np.zeros(len(lines), np.int64)).max())


def rate(lines: Lines) -> int:
    """Return how many calls ended per second."""
    return round(len(lines) / 2 / float(lines["at_us"][-1] - lines["at_us"][0]) * 1e6)


def test_records_of_ten_thousand_keys_keep_their_order(apps: Apps, tmp_path: Path) -> None:
    keys = spread_keys(sized(20_000, 1_000_000), 10_000)
    output = run(apps, tmp_path, keys, Enrich(Journal(tmp_path / "journal")))
    lines = read(tmp_path / "journal")
    check_answers(keys, output)
    check_attempts(keys, lines)
    check_no_overlap(keys, lines)
    assert IN_FLIGHT // 2 < max_open_calls(lines) <= IN_FLIGHT
    write_result_of_single_calls("order-10000-keys", keys, lines)


def test_a_hot_key_keeps_its_order_with_batches(apps: Apps, tmp_path: Path) -> None:
    keys = zipf_keys(sized(8_000, 1_000_000), 1_000, 1.1)
    output = run(apps, tmp_path, keys, EnrichBatch(Journal(tmp_path / "journal")), batch=(128, 20))
    lines = read(tmp_path / "journal")
    check_answers(keys, output)
    check_attempts(keys, lines)
    calls = first_begin_and_last_end(keys, lines)
    assert overlaps(calls, keys[calls["number"]]) == 0
    write_result(
        "order-zipf-batches",
        records=len(keys),
        keys=len(np.unique(keys)),
        calls=int(np.unique(lines["note"]).size),
        calls_per_second=rate(lines),
    )


def test_a_hot_key_keeps_its_order_with_single_calls(apps: Apps, tmp_path: Path) -> None:
    keys = zipf_keys(sized(1_000, 20_000), 1_000, 1.1)
    output = run(apps, tmp_path, keys, Enrich(Journal(tmp_path / "journal")))
    lines = read(tmp_path / "journal")
    check_answers(keys, output)
    check_attempts(keys, lines)
    check_no_overlap(keys, lines)
    write_result_of_single_calls("order-zipf", keys, lines)
