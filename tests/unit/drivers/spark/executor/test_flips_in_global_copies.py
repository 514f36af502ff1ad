"""Bits that flip in the files of a host's copy of a global store: micro-batches still see the table at the planned offsets."""

from __future__ import annotations

import gc
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from millstream.core.model.errors import DamagedCopyError
from unit.drivers.engines import COPIES
from unit.drivers.topics import FakeTopic
from unit.flips import FLIPS, flip

from .test_global_stores import TOPIC, Hosts, counted


def expected(topic: FakeTopic) -> dict[str, str]:
    """Return the expected content of the store: values, and how often a key was changed since it was deleted."""
    content: dict[str, tuple[str, int]] = {}
    for entries in topic.entries:
        for key, value, _ in entries:
            assert key is not None
            if value is None:
                content.pop(key.decode(), None)
            else:
                content[key.decode()] = (value.decode(), content.get(key.decode(), ("", 0))[1] + 1)
    return {key: f"{value}#{number}" for key, (value, number) in content.items()}


def write(topic: FakeTopic, chance: random.Random) -> None:
    for _ in range(chance.choice([3, 40, 150])):
        value = None if chance.random() < 0.1 else "x" * chance.choice([1, 30, 1_000])
        topic.write(f"key-{chance.randrange(60)}", value)


def seen(hosts: Hosts) -> tuple[dict[str, Any], bool]:
    """Return the content that a task sees, and whether damage was found; the micro-batch is then repeated once."""
    with suppress(DamagedCopyError):
        return hosts.content(), False
    gc.collect()  # readers must release the damaged copy
    return hosts.content(), True


@pytest.mark.timeout(60 + FLIPS)
@pytest.mark.parametrize("name", ["lmdb", "rocksdb"])
def test_flipped_bits_do_not_change_the_content_of_a_global_store(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = Counter[str]()
    for seed in range(FLIPS):
        chance = random.Random(seed)
        hosts = Hosts(tmp_path / str(seed), COPIES[name], FakeTopic(TOPIC, 3, chunk_size=50))
        hosts.topology = counted()
        for _ in range(chance.randrange(1, 4)):
            write(hosts.topic, chance)
            hosts.content()
        hosts.die()
        home = hosts.directory().parent
        files = [path for path in sorted(home.rglob("*")) if path.is_file() and path.stat().st_size]
        (path,) = chance.choices(files, [path.stat().st_size + 500 for path in files])
        flip(path, chance)
        if chance.random() < 0.5:
            write(hosts.topic, chance)
        content, found = seen(hosts)
        assert content == expected(hosts.topic), (seed, path)
        write(hosts.topic, chance)
        assert seen(hosts)[0] == expected(hosts.topic), (seed, path)
        detected = found or any("is damaged" in text for text in caplog.messages)
        caplog.clear()
        outcomes["found" if detected else "no matter"] += 1
        COPIES[name].discard(str(hosts.directory()))
    assert outcomes["found"], outcomes
