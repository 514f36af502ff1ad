"""Recordings, and the ways to replay them.

A replay is a function `(topology, recording) -> Replayed`. It hands the inputs of a recording to a topology batch by
batch, and gives back what came out in the recording's own terms, so that tests compare plain values. A further way of
running topologies joins by being added to `REPLAYS`.

A recording has one input per batch. `Recording.in_batches_of` makes larger ones: the meaning of a topology does not
depend on batches, so the same records have to come out, only less is known about what they came after.

``python tests/golden/replay.py FILE.json ...`` replays recordings, each in every way, and exits with status 0 if all are
equal; else it prints the first difference of each, and the status is 1. Every field of a recording is compared.
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

if __name__ == "__main__":  # run as a script, which has no package around it
    sys.path.insert(0, str(Path(__file__).parents[1]))

from golden import scenarios
from golden.micro_batches import MicroBatches, Row, columns
from golden.scenarios import SCENARIOS

DATA = Path(__file__).parent / "data"
APPLICATION_ID = "oracle"

cloudpickle.register_pickle_by_value(scenarios)
"""Functions of a program that is run are in the pickle of its plan, not looked up by name; so are those of the scenarios."""

Entry = dict[str, Any]
Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Recording:
    """What Kafka Streams was given and what it made of it."""

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
            ValueError: If it holds no recording, or one of an unknown scenario.
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
        """Join up to `size` inputs per batch, and return the outputs as they are read after such batches.

        Args:
            size: The most inputs in a batch.
            rows_once: Whether a batch has at most one change of each row.
            topics_together: Whether a batch may have records of several topics; a task that finds them all at once takes
                them in the recorded order.
        """
        inputs = (entry for batch in self.batches for entry in batch)
        batches = list(
            batched(inputs, size, rows_once, taken_in_order if topics_together else from_one_topic)
        )
        last = {entry["i"]: batch[-1]["i"] for batch in batches for entry in batch}
        moved = [{**output, "after": last[output["after"]]} for output in self.outputs]
        moved.sort(key=lambda output: (output["after"], self.topics.index(output["topic"])))
        return replace(self, batches=batches, outputs=moved)


def batched(
    inputs: Iterable[Entry], size: int, rows_once: bool, may_be: Callable[[list[Entry]], bool]
) -> Iterator[list[Entry]]:
    """Cut inputs into batches of neighbours, each as large as it may be."""
    batch: list[Entry] = []
    for entry in inputs:
        again = rows_once and any(entry.get("key") == other.get("key") for other in batch)
        if batch and (len(batch) == size or again or not may_be([*batch, entry])):
            yield batch
            batch = []
        batch.append(entry)
    yield batch


def from_one_topic(batch: list[Entry]) -> bool:
    """Return whether all are records of one topic: the recording chooses the next topic."""
    return batch[0].get("topic") is not None and all(e.get("topic") == batch[0]["topic"] for e in batch)


def taken_in_order(batch: list[Entry]) -> bool:
    """Return whether a task takes records of several topics in this order: the head with the smallest timestamp first."""
    if any("topic" not in entry for entry in batch):
        return False
    left = {topic: [e for e in batch if e["topic"] == topic] for topic in sorted(e["topic"] for e in batch)}
    for entry in batch:
        first = min((queue for queue in left.values() if queue), key=lambda queue: queue[0]["timestamp"])
        if first.pop(0) is not entry:
            return False
    return True


@dataclass(frozen=True)
class Replayed:
    """What a topology made of a recording's inputs, in the recording's terms."""

    outputs: list[Entry]
    stores: dict[str, list[Any]]
    dropped: int


Replay = Callable[[ms.Topology, Recording], Replayed]


def with_test_driver(topology: ms.Topology, recording: Recording) -> Replayed:
    """Replay with the public TopologyTestDriver, which processes each record to the end."""
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
    """Replay with partitions divided into key ranges.

    Results of different keys may come in another order within one batch, so outputs and stores are sorted by key; see
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
    """Sort outputs by topic and key within each batch, in the order of each key, and stores by entry."""

    def sort_key(output: Entry) -> tuple[int, str, str]:
        key = output["key"]
        return output["after"], output["topic"], str(key["key"] if isinstance(key, dict) else key)

    stores = {name: sorted(entries, key=json.dumps) for name, entries in replayed.stores.items()}
    return Replayed(sorted(replayed.outputs, key=sort_key), stores, replayed.dropped)


def expected_by_key(recording: Recording) -> Replayed:
    """Return the recorded results, sorted as :func:`by_key` does."""
    return by_key(Replayed(recording.outputs, recording.stores, recording.dropped))


def in_micro_batches(*, chunk: int, budget: int | None, threads: Threads | None = None) -> Replay:
    """Replay through the interface of the task, with a new task for each step; see `MicroBatches`."""

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
            outputs += [{"after": batch[-1]["i"], **spell(topic, r)} for r in drain(topic)]
    if any("headers" in output for output in recording.outputs):
        return outputs
    return [{name: part for name, part in output.items() if name != "headers"} for output in outputs]


def headers_of(entry: Entry) -> Headers:
    return tuple((name, value.encode()) for name, value in entry.get("headers", ()))


def row_of(entry: Entry) -> Row:
    """Serialise an input: all recorded inputs are strings."""
    key, value = (None if part is None else part.encode() for part in (entry["key"], entry["value"]))
    return key, value, entry["timestamp"], headers_of(entry)


def spell(topic: str, record: ms.Record) -> Entry:
    """Write an output record as a recording does."""
    return {
        "topic": topic,
        "key": spell_key(record.key),
        "value": record.value,
        "timestamp": record.timestamp,
        "headers": [[name, value.decode()] for name, value in record.headers],
    }


def dump(store: Any, recording: Recording) -> list[Any]:
    """List a store as a recording does: with timestamps where the store keeps them, windows by key, start and end."""
    if isinstance(store, VersionedStore):
        versions = [(key, store.get(key)) for key in recording.input_keys()]
        return [[key, *version[:2]] for key, version in versions if version is not None]
    entries = [spell_entry(key, value) for key, value in store.all()]
    if isinstance(store, (SessionStore, WindowStore)):
        entries.sort(key=lambda entry: [*entry[0].values()])
    return entries


def spell_entry(key: str | ms.Windowed, value: Any) -> list[Any]:
    spelled = spell_key(key)
    return [spelled, *value] if isinstance(value, ms.ValueAndTimestamp) else [spelled, value]


def spell_key(key: str | ms.Windowed | None) -> Any:
    return key._asdict() if isinstance(key, ms.Windowed) else key


def first_difference(expected: Iterable[Any], got: Iterable[Any]) -> str | None:
    """Return the first difference of two lists; a diff of everything after it would hide the cause."""
    for index, (want, have) in enumerate(zip_longest(expected, got)):
        if want != have:
            return f"at {index}: Kafka Streams gave {want}, millstream gave {have}"
    return None


def difference(recording: Recording, replayed: Replayed) -> str | None:
    """Return how a replay differs from its recording, None if it does not."""
    if found := first_difference(recording.outputs, replayed.outputs):
        return f"outputs differ {found}"
    for name, entries in recording.stores.items():
        if found := first_difference(entries, replayed.stores[name]):
            return f"store {name!r} differs {found}"
    if recording.dropped != replayed.dropped:
        return f"dropped records differ: Kafka Streams had {recording.dropped}, millstream has {replayed.dropped}"
    return None


def found_in_ranges(path: Path, parallelism: int) -> str | None:
    """Replay a recording in key ranges; return the first error, None if there is none."""
    try:
        recording = Recording.load(path)
        replayed = in_key_ranges(parallelism)(SCENARIOS[recording.scenario].build(), recording)
    except TopologyError as error:
        return f"refused: {error}"
    except (OSError, ValueError) as error:
        return f"cannot be replayed: {error}"
    wanted = expected_by_key(recording)
    return difference(replace(recording, outputs=wanted.outputs, stores=wanted.stores), replayed)


def found_in(path: Path) -> str | None:
    """Replay a recording in every way; return the first error, None if there is none."""
    try:
        recording = Recording.load(path)
    except (OSError, ValueError) as error:
        return f"cannot be replayed: {error}"
    for way, replay in REPLAYS.items():
        try:
            found = difference(recording, replay(SCENARIOS[recording.scenario].build(), recording))
        except Exception as error:  # whatever it is, the other recordings are replayed all the same
            return f"({way}) failed with {type(error).__name__}: {error}"
        if found is not None:
            return f"({way}) {found}"
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
        found = found_in(path) if options.parallelism is None else found_in_ranges(path, options.parallelism)
        if found is not None and found.startswith("refused: "):
            refused += 1
            print(f"{path}: {found}")
        elif found is not None:
            different += 1
            print(f"{path}: {found}")
    how = f"replayed in {len(REPLAYS)} ways each"
    if options.parallelism is not None:
        how = f"replayed with parallelism={options.parallelism}; {refused} are refused"
    print(f"{len(files) - different - refused} of {len(files)} recordings are equal, {how}")
    return min(different, 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
