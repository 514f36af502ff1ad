"""Proof 2: no committed offset is beyond an unfinished record, and committed offsets never go back.

The broker has all commits with their times, and the journal of the calls shows when each record was finished. So each commit is
compared with the calls that had ended before it. Micro-batches are small, so that there are many commits. The topic has gaps:
records of aborted transactions, and transaction markers. With exactly once, the short form is part of the proof of kills, which
checks all commits, too. The same is shown for a processor that acknowledges records itself, in any order, with a restart in between.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import Producer

import millstream as ms
from integration.helpers import Apps, committed_records, eventually, written
from millstream.testing.crash.broker_topics import commits_of

from .acknowledging_processor import working
from .checks import finish_times, too_early
from .enrichment import Enrich, Keys, answer, chains, serial_run, spread_keys
from .journal import Journal, Lines, read
from .results import write_result
from .sizes import sized

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.timeout(sized(300, 7_200)),
]

KEYS = 500
BATCH_RECORDS = 50
IN_TRANSACTION = 20


def number_of(value: bytes) -> int:
    return int(value)


def produce_with_gaps(apps: Apps, topic: str, keys: Keys) -> None:
    """Write records in transactions of twenty; before every third, one with other records is aborted."""
    producer = Producer(
        {"bootstrap.servers": apps.kafka.bootstrap_servers, "transactional.id": f"{topic}-writer"}
    )
    producer.init_transactions(30)
    for begin in range(0, len(keys), IN_TRANSACTION):
        if begin % (3 * IN_TRANSACTION) == 0:
            producer.begin_transaction()
            producer.produce(topic, "nobody may see this", "aborted", 0)
            producer.flush()
            producer.abort_transaction()
        producer.begin_transaction()
        for number, key in enumerate(keys[begin : begin + IN_TRANSACTION].tolist(), start=begin):
            producer.produce(topic, str(number), f"k{key}", 0)
        producer.commit_transaction()


@pytest.mark.soak
@pytest.mark.parametrize("guarantee", sized(["at_least_once"], ["at_least_once", "exactly_once"]))
def test_no_commit_is_beyond_an_unfinished_record(apps: Apps, tmp_path: Path, guarantee: str) -> None:
    keys = spread_keys(sized(2_000, 60_000), KEYS)
    source, sink = apps.topic("in", 1), apps.topic("out", 1)
    produce_with_gaps(apps, source, keys)
    enrich = Enrich(Journal(tmp_path / "journal"))
    builder = ms.StreamsBuilder()
    retry = ms.Retry(initial=20, jitter=0)
    builder.stream(source).map_values_async(enrich, max_in_flight=20, retry=retry).to(sink)
    apps.run(
        builder.build(),
        processing_guarantee=guarantee,
        isolation_level="read_committed",
        max_batch_records=BATCH_RECORDS,
    )
    check_order(apps, sink, keys)
    check_commits("committable-offset", guarantee, apps, source, read(tmp_path / "journal"))


@pytest.mark.parametrize("guarantee", sized(["at_least_once"], ["at_least_once", "exactly_once"]))
def test_no_commit_is_beyond_an_unacknowledged_record(apps: Apps, tmp_path: Path, guarantee: str) -> None:
    keys = spread_keys(sized(2_000, 75_000), KEYS)
    source, sink = apps.topic("in", 1), apps.topic("out", 1)
    produce_with_gaps(apps, source, keys)
    settings = {
        "processing_guarantee": guarantee,
        "isolation_level": "read_committed",
        "max_batch_records": BATCH_RECORDS,
    }
    topology = working(source, sink, Journal(tmp_path / "journal"), max_unacknowledged=20 * BATCH_RECORDS)
    with apps.start(topology, **settings):
        eventually(lambda: written(apps.kafka, sink) > len(keys) // 3, "a third of the answers", within_s=600)
    apps.run(topology, **settings)
    answers = Counter(record.value for record in committed_records(apps.kafka, sink))
    assert answers.keys() == {answer(number).encode() for number in range(len(keys))}
    assert guarantee == "at_least_once" or answers.total() == len(keys)
    check_commits("acknowledged", guarantee, apps, source, read(tmp_path / "journal"))


def check_order(apps: Apps, sink: str, keys: Keys) -> None:
    """Compare the answers of each key with those of the serial run."""
    output = committed_records(apps.kafka, sink)
    assert chains(((r.key or b"").decode(), (r.value or b"").decode()) for r in output) == serial_run(keys)


def check_commits(name: str, guarantee: str, apps: Apps, source: str, lines: Lines) -> None:
    """Check that all records before each commit had been finished; write the number of commits."""
    input_records = apps.kafka.consume(source, isolation="read_committed")
    offsets = np.array([record.offset for record in input_records])
    finished = finish_times(input_records, number_of, lines)
    commits = commits_of(apps.kafka, apps.id, source)
    assert too_early(commits, offsets, finished) == []
    committed = [commit.offset for commit in commits]
    assert committed == sorted(committed)
    assert committed[-1] > offsets[-1]
    assert len(set(committed)) >= sized(30, 1_000)
    write_result(
        f"{name}-{guarantee.replace('_', '-')}",
        records=len(input_records),
        offsets_without_a_record=committed[-1] - len(input_records),
        commits=len(commits),
        different_offsets=len(set(committed)),
        beyond_an_unfinished_record=0,
        went_back=0,
    )
