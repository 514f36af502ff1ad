"""Compares the data that a run has left in Kafka (results, changelog topics and commits) with the oracle.

A finished run is compared completely. An unfinished run is compared up to the point that it reached: journals may end anywhere, and
stores are skipped, because the application could not be queried for their contents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from millstream.core.model.partitioning import partition_of
from millstream.core.topology.stores import KeyValueSpec
from millstream.testing.crash.app import App, Entry, Expected, Topics
from millstream.testing.crash.broker_topics import TRANSACTIONS, commits_of, transaction_lines, went_back
from millstream.testing.crash.crash_report import Report
from millstream.testing.crash.journal import check_contents, check_journals, journals_of
from millstream.testing.crash.processes import CrashTestError
from millstream.testing.crash.setup import PARTITIONS, Setup, plan_of
from millstream.testing.crash.split_topic import logs_of
from millstream.testing.crash.stream import number_of
from millstream.testing.kafka import ConsumedRecord, EmbeddedKafka, EmbeddedKafkaError

_STATES_SHOWN = 6


def outcome(
    setup: Setup, kafka: EmbeddedKafka, topics: Topics, report: Report, contents: Mapping[Entry, Any] | None
) -> Report:
    """Compare the results of a run with its oracle and add the findings to the report of its course.

    Args:
        contents: The contents of the stores; None if the application could not be queried.

    Raises:
        CrashTestError: If the input topic of a finished run does not contain the workload, which is a bug of the harness.
    """
    app, cut = setup.app, bool(report.unfinished)
    logs = logs_of(kafka.bootstrap_servers, topics.input) if app.splits else [topics.input]
    given = [record for log in logs for record in kafka.consume(log, isolation="read_committed")]
    if app.splits:  # by the order in which they were sent, which each key must have in all epochs
        given.sort(key=number_of)
    if not cut and len(given) != setup.records:
        raise CrashTestError(
            f"the input topic has {len(given):,} records instead of {setup.records:,}; this is a bug of the harness"
        )
    history = kafka.consume(topics.history) if app.history is not None else []
    expected = app.oracle([*given, *history])
    results = kafka.consume(topics.output, isolation="read_committed")
    wrong_states, examples = (0, ()) if contents is None else check_contents(expected, contents)
    wrong_changelogs, more = _changelogs(setup, kafka, expected, cut=cut)
    return replace(
        report,
        records=len(given),
        outputs=len(results),
        aborted=len(kafka.consume(topics.output)) - len(results),
        findings=check_journals(*_journals(app, expected, results), merged=app.merged, cut=cut),
        wrong_states=wrong_states,
        wrong_changelogs=wrong_changelogs,
        went_back=sum(went_back(commits_of(kafka, app.name, log)) for log in logs),
        examples=examples + more,
        misplaced=_misplaced(results) if expected.origins is not None else 0,
        evidence=_evidence(kafka) if cut else (),
    )


def _journals(
    app: App, expected: Expected, results: Sequence[ConsumedRecord]
) -> tuple[Mapping[Any, Sequence[Any]], Mapping[Any, Sequence[Any]]]:
    """Return the expected and the seen journals, with timestamps and headers if the oracle knows the origins of values."""
    seen = journals_of(results, app.key, app.value)
    if expected.origins is None:
        return expected.journals, seen
    taken_by_broker = app.output.get("message.timestamp.type") == "LogAppendTime"

    def stamps(records: Iterable[ConsumedRecord]) -> list[tuple[Any, ...]]:
        return [(0 if taken_by_broker else record.timestamp, record.headers) for record in records]

    of_key: dict[Any, list[ConsumedRecord]] = {}
    for record in results:
        of_key.setdefault(None if record.key is None else app.key.deserialize(record.key), []).append(record)
    return (
        {key: [*zip(values, stamps(expected.origins[key]))] for key, values in expected.journals.items()},
        {key: [*zip(values, stamps(of_key[key]))] for key, values in seen.items()},
    )


def _misplaced(results: Iterable[ConsumedRecord]) -> int:
    return sum(partition_of(record.key or b"", PARTITIONS) != record.partition for record in results)


def _changelogs(
    setup: Setup, kafka: EmbeddedKafka, expected: Expected, *, cut: bool
) -> tuple[int, tuple[str, ...]]:
    """Compare the changelog topics of key-value stores: all records if the oracle knows all updates, otherwise the last of each key."""
    plan = plan_of(setup.app)
    total = 0
    examples: tuple[str, ...] = ()
    for sub in plan.subtopologies:
        for name, spec in sub.stores.items():
            if name not in plan.changelogs or not isinstance(spec, KeyValueSpec):
                continue
            records = kafka.consume(plan.changelogs[name], isolation="read_committed")
            journals = journals_of(records, spec.key, spec.value)
            if updates := expected.updates.get(name):
                findings = check_journals(updates, journals, merged=True, cut=cut)
                wrong, more = findings.broken(setup.guarantee), findings.examples
            elif not cut:
                last = {(name, key): values[-1] for key, values in journals.items() if values[-1] is not None}
                wrong, more = check_contents(Expected({}, {name: expected.stores.get(name, {})}), last)
            else:
                continue
            total += wrong
            examples += tuple(f"changelog of {name}, {example}" for example in more)
    return total, examples


def _evidence(kafka: EmbeddedKafka) -> tuple[str, ...]:
    """Return the last states of all transactions, or none if there is no log of transactions (at least once)."""
    try:
        return transaction_lines(kafka.consume(TRANSACTIONS), _STATES_SHOWN)
    except EmbeddedKafkaError:
        return ()
