"""Loads recordings of Kafka Streams and replays them in several ways.

A replay is a function `(topology, recording) -> Replayed`. It passes the inputs of a recording to a topology batch by
batch, and returns the results in the format of the recording, so that tests compare plain values. To add another way of
running topologies, add it to `REPLAYS`.

A recording has one input per batch. `Recording.in_batches_of` makes larger batches. The results of a topology do not
depend on the batches, so it must send the same records; only the input that each record followed is known less exactly.

``python tests/golden/replay.py FILE.json ...`` replays each recording in every way, and exits with status 0 if all are
equal. Otherwise it prints the first difference of each recording and exits with status 1. It compares every field of a
recording.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

import millstream as ms
from millstream.core.model.errors import TopologyError
from millstream.core.model.ids import TopicPartition
from millstream.core.ports import Threads
from millstream.core.state.session import SessionStore
from millstream.core.state.versioned import VersionedStore
from millstream.core.state.window import WindowStore
from millstream.drivers.threads import TaskThreads
from millstream.testing import TopologyTestDriver

if __name__ == "__main__":  # a script is not part of a package
    sys.path.insert(0, str(Path(__file__).parents[1]))

from golden import scenarios
from golden.micro_batches import MicroBatches, Row, columns
from golden.scenarios import SCENARIOS

DATA = Path(__file__).parent / "data"
APPLICATION_ID = "oracle"

cloudpickle.register_pickle_by_value(scenarios)
"""The pickle of a plan contains the functions of the main program. It must contain the functions of the scenarios, too."""

Entry = dict[str, Any]
Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Recording:
    """The inputs of Kafka Streams and its results."""

    scenario: str
    topics: tuple[str, ...]
    batches: list[list[Entry]]
    outputs: list[Entry]
    stores: dict[str, list[Any]]
    dropped: int

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read a recording.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If the file is not a recording, or if its scenario is unknown.
        """
        content = json.loads(path.read_text())
        missing = {"scenario", "inputs", "outputs", "stores", "dropped"} - set(content)
        if missing:
            raise ValueError(f"it is no recording: it has no {', '.join(sorted(missing))}")
        if content["scenario"] not in SCENARIOS:
            raise ValueError(f"there is no scenario {content['scenario']!r} in {scenarios.__file__}")
        return cls(
            scenario=content["scenario"],
            topics=SCENARIOS[content["scenario"]].topics,
            batches=[[entry] for entry in content["inputs"]],
            outputs=content["outputs"],
            stores=content["stores"],
            dropped=content["dropped"],
        )

    def input_keys(self) -> list[str]:
        """Return the keys of all inputs, sorted."""
        return sorted({e["key"] for batch in self.batches for e in batch if e.get("key") is not None})

    def in_batches_of(
        self, size: int, *, rows_once: bool = False, topics_together: bool = False
    ) -> Recording:
        """Return the recording with up to `size` inputs per batch, and with the outputs as they are read after such batches.

        Args:
            size: The largest number of inputs in a batch.
            rows_once: Whether a batch may change each row only once.
            topics_together: Whether a batch may contain records of several topics. It does so only if a task that receives
                them all at once processes them in the recorded order.
        """
        inputs = (entry for batch in self.batches for entry in batch)
        batches = list(
            batched(inputs, size, rows_once, taken_in_order if topics_together else from_one_topic)
        )
        last = {entry["i"]: batch[-1]["i"] for batch in batches for entry in batch}
        moved_outputs = [{**output, "after": last[output["after"]]} for output in self.outputs]
        moved_outputs.sort(key=lambda output: (output["after"], self.topics.index(output["topic"])))
        return replace(self, batches=batches, outputs=moved_outputs)


def batched(
    inputs: Iterable[Entry], size: int, rows_once: bool, is_allowed: Callable[[list[Entry]], bool]
) -> Iterator[list[Entry]]:
    """Divide inputs into batches of consecutive inputs, each as large as possible."""
    batch: list[Entry] = []
    for entry in inputs:
        changes_a_row_again = rows_once and any(entry.get("key") == other.get("key") for other in batch)
        if batch and (len(batch) == size or changes_a_row_again or not is_allowed([*batch, entry])):
            yield batch
            batch = []
        batch.append(entry)
    yield batch


def from_one_topic(batch: list[Entry]) -> bool:
    """Return whether all inputs are records of one topic."""
    return batch[0].get("topic") is not None and all(e.get("topic") == batch[0]["topic"] for e in batch)


def taken_in_order(batch: list[Entry]) -> bool:
    """Return whether a task processes the records in this order. It takes the queue whose head has the smallest timestamp."""
    if any("topic" not in entry for entry in batch):
        return False
    queues = {topic: [e for e in batch if e["topic"] == topic] for topic in sorted(e["topic"] for e in batch)}
    for entry in batch:
        first = min((queue for queue in queues.values() if queue), key=lambda queue: queue[0]["timestamp"])
        if first.pop(0) is not entry:
            return False
    return True


@dataclass(frozen=True)
class Replayed:
    """The results of a topology for the inputs of a recording, in the format of the recording."""

    outputs: list[Entry]
    stores: dict[str, list[Any]]
    dropped: int


Replay = Callable[[ms.Topology, Recording], Replayed]


def with_test_driver(topology: ms.Topology, recording: Recording) -> Replayed:
    """Replay with the public TopologyTestDriver, which processes each record completely before the next one."""
    settings = {"application_id": APPLICATION_ID, "statestore_cache_max_bytes": 0}
    with TopologyTestDriver(topology, wall_clock_ms=0, **settings) as driver:

        def run(batch: list[Entry]) -> None:
            for entry in batch:
                if "advance_wall_clock_ms" in entry:
                    driver.advance_wall_clock(entry["advance_wall_clock_ms"])
                else:
                    record = entry["key"], entry["value"], entry["timestamp"]
                    driver.pipe(entry["topic"], *record, headers=headers_of(entry))

        outputs = collect(recording, run, driver.read)
        stores = {name: dump(driver.store(name), recording) for name in recording.stores}
        return Replayed(outputs, stores, driver.metrics()["dropped_records"])


def in_key_ranges(parallelism: int) -> Replay:
    """Return a replay with partitions divided into key ranges.

    The order of results of different keys may differ within a batch, so outputs and stores are sorted by key; see
    :func:`by_key`.
    """

    def replay_(topology: ms.Topology, recording: Recording) -> Replayed:
        settings = {"application_id": APPLICATION_ID, "statestore_cache_max_bytes": 0}
        with TopologyTestDriver(topology, wall_clock_ms=0, parallelism=parallelism, **settings) as driver:

            def run(batch: list[Entry]) -> None:
                if "advance_wall_clock_ms" in batch[0]:
                    return driver.advance_wall_clock(batch[0]["advance_wall_clock_ms"])
                for topic in dict.fromkeys(entry["topic"] for entry in batch):
                    rows = [row_of(entry) for entry in batch if entry["topic"] == topic]
                    driver._runner.micro_batch([(TopicPartition(topic, 0), columns(rows, first_offset=0))])
                return None

            outputs = collect(recording, run, driver.read)
            stores = {}
            for name in recording.stores:
                tasks = [task for task in driver._runner.tasks.values() if name in task.task.stores]
                stores[name] = [entry for task in tasks for entry in dump(task.store(name), recording)]
            return by_key(Replayed(outputs, stores, driver.metrics()["dropped_records"]))

    return replay_


def by_key(replayed: Replayed) -> Replayed:
    """Sort the outputs of each batch by topic and key, keeping the order of each key, and sort the entries of stores."""

    def sort_key(output: Entry) -> tuple[int, str, str]:
        key = output["key"]
        return output["after"], output["topic"], str(key["key"] if isinstance(key, dict) else key)

    stores = {name: sorted(entries, key=json.dumps) for name, entries in replayed.stores.items()}
    return Replayed(sorted(replayed.outputs, key=sort_key), stores, replayed.dropped)


def expected_by_key(recording: Recording) -> Replayed:
    """Return the recorded results in the order of :func:`by_key`."""
    return by_key(Replayed(recording.outputs, recording.stores, recording.dropped))


def in_micro_batches(*, chunk: int, budget: int | None, threads: Threads | None = None) -> Replay:
    """Return a replay that runs tasks directly, with a new task for each step; see `MicroBatches`."""

    def replay_(topology: ms.Topology, recording: Recording) -> Replayed:
        runner = MicroBatches(topology, APPLICATION_ID, chunk=chunk, budget=budget, threads=threads)

        def run(batch: list[Entry]) -> None:
            if "advance_wall_clock_ms" in batch[0]:
                runner.advance_to(runner.now_ms + batch[0]["advance_wall_clock_ms"])
            else:
                topics: dict[str, list[Row]] = {}
                for entry in batch:
                    topics.setdefault(entry["topic"], []).append(row_of(entry))
                runner.process_together(topics)

        outputs = collect(recording, run, lambda topic: runner.sent.pop(topic, []))
        stores = {name: dump(runner.store(name), recording) for name in recording.stores}
        return Replayed(outputs, stores, runner.dropped)

    return replay_


REPLAYS: dict[str, Replay] = {
    "test-driver": with_test_driver,
    "new-task-per-batch": in_micro_batches(chunk=2, budget=None),
    "new-task-per-step": in_micro_batches(chunk=1000, budget=3),
    "three-threads": in_micro_batches(chunk=2, budget=None, threads=TaskThreads(3)),
}


def collect(
    recording: Recording, run: Callable[[list[Entry]], None], drain: Callable[[str], list[ms.Record]]
) -> list[Entry]:
    """Run the batches, and read the output topics after each as the recorder did."""
    outputs = []
    for batch in recording.batches:
        run(batch)
        for topic in recording.topics:
            outputs += [{"after": batch[-1]["i"], **recorded_output(topic, r)} for r in drain(topic)]
    if any("headers" in output for output in recording.outputs):
        return outputs
    return [{name: part for name, part in output.items() if name != "headers"} for output in outputs]


def headers_of(entry: Entry) -> Headers:
    return tuple((name, value.encode()) for name, value in entry.get("headers", ()))


def row_of(entry: Entry) -> Row:
    """Serialise an input. All recorded inputs are strings."""
    key, value = (None if part is None else part.encode() for part in (entry["key"], entry["value"]))
    return key, value, entry["timestamp"], headers_of(entry)


def recorded_output(topic: str, record: ms.Record) -> Entry:
    """Return an output record in the format of a recording."""
    return {
        "topic": topic,
        "key": recorded_key(record.key),
        "value": record.value,
        "timestamp": record.timestamp,
        "headers": [[name, value.decode()] for name, value in record.headers],
    }


def dump(store: Any, recording: Recording) -> list[Any]:
    """Return the entries of a store in the format of a recording: with timestamps if the store has them, windows sorted."""
    if isinstance(store, VersionedStore):
        versions = [(key, store.get(key)) for key in recording.input_keys()]
        return [[key, *version[:2]] for key, version in versions if version is not None]
    entries = [recorded_entry(key, value) for key, value in store.all()]
    if isinstance(store, (SessionStore, WindowStore)):
        entries.sort(key=lambda entry: [*entry[0].values()])
    return entries


def recorded_entry(key: str | ms.Windowed, value: Any) -> list[Any]:
    json_key = recorded_key(key)
    return [json_key, *value] if isinstance(value, ms.ValueAndTimestamp) else [json_key, value]


def recorded_key(key: str | ms.Windowed | None) -> Any:
    return key._asdict() if isinstance(key, ms.Windowed) else key


def first_difference(expected: Iterable[Any], actual: Iterable[Any]) -> str | None:
    """Return the first difference between two lists. A diff of all that follows would hide the cause."""
    for index, (theirs, ours) in enumerate(zip_longest(expected, actual)):
        if theirs != ours:
            return f"at {index}: Kafka Streams gave {theirs}, millstream gave {ours}"
    return None


def difference(recording: Recording, replayed: Replayed) -> str | None:
    """Return how a replay differs from its recording, or None if it does not."""
    if problem := first_difference(recording.outputs, replayed.outputs):
        return f"outputs differ {problem}"
    for name, entries in recording.stores.items():
        if problem := first_difference(entries, replayed.stores[name]):
            return f"store {name!r} differs {problem}"
    if recording.dropped != replayed.dropped:
        return f"dropped records differ: Kafka Streams had {recording.dropped}, millstream has {replayed.dropped}"
    return None


def error_in_key_ranges(path: Path, parallelism: int) -> str | None:
    """Replay a recording in key ranges; return the first error, or None."""
    try:
        recording = Recording.load(path)
        replayed = in_key_ranges(parallelism)(SCENARIOS[recording.scenario].build(), recording)
    except TopologyError as error:
        return f"refused: {error}"
    except (OSError, ValueError) as error:
        return f"cannot be replayed: {error}"
    expected_results = expected_by_key(recording)
    return difference(
        replace(recording, outputs=expected_results.outputs, stores=expected_results.stores), replayed
    )


def error_of(path: Path) -> str | None:
    """Replay a recording in every way; return the first error, or None."""
    try:
        recording = Recording.load(path)
    except (OSError, ValueError) as error:
        return f"cannot be replayed: {error}"
    for way, replay in REPLAYS.items():
        try:
            problem = difference(recording, replay(SCENARIOS[recording.scenario].build(), recording))
        except Exception as error:  # the other recordings are replayed even so
            return f"({way}) failed with {type(error).__name__}: {error}"
        if problem is not None:
            return f"({way}) {problem}"
    return None


def main(arguments: list[str]) -> int:
    """Replay recordings in every way; print the differences, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="replay.py", description="Replay recordings of Kafka Streams and compare all that came out."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json", help="a recording")
    parser.add_argument("--parallelism", type=int, help="replay in key ranges, for so many workers")
    options = parser.parse_args(arguments)
    files: list[Path] = options.files
    different = refused = 0
    for path in files:
        problem = (
            error_of(path) if options.parallelism is None else error_in_key_ranges(path, options.parallelism)
        )
        if problem is not None and problem.startswith("refused: "):
            refused += 1
            print(f"{path}: {problem}")
        elif problem is not None:
            different += 1
            print(f"{path}: {problem}")
    how = f"replayed in {len(REPLAYS)} ways each"
    if options.parallelism is not None:
        how = f"replayed with parallelism={options.parallelism}; {refused} are refused"
    print(f"{len(files) - different - refused} of {len(files)} recordings are equal, {how}")
    return min(different, 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
