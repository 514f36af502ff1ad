"""Flipped bits: a damaged copy never returns wrong values, and never prevents the next start.

Each case creates a copy with random commits, flips a random bit in one of its files, and continues like a new process
that has the log. The content that it reads is compared with a model. ``MILLSTREAM_TEST_FLIPS=1000`` is for long runs.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.core.model.errors import DamagedCopyError
from millstream.core.model.ids import TaskId
from millstream.core.ports import LocalCopy
from millstream.core.state.segments.log import Manifest
from millstream.drivers.spark.executor.statelog import StateLog

from .engines import COPIES, Engine
from .state import MapState

FLIPS = int(os.environ.get("MILLSTREAM_TEST_FLIPS", "30"))
IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
STORES = ("s", "t", "u/1")
Content = dict[str, dict[bytes, bytes]]


class DamagedCopyCase:
    """A copy with content, its log, and the model of what it holds."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.random = random.Random(seed)
        self.engine = engine
        self.found = False
        self.directory = tempfile.mkdtemp(prefix="millstream-", dir=IN_MEMORY)
        self.model: Content = {store: {} for store in STORES}
        self.log, self.manifest = StateLog(MapState(), TaskId(0, 3)), Manifest()
        for _ in range(self.random.randrange(2, 12)):
            self.batch()

    def batch(self) -> None:
        copy = self.opened()
        changes = self.changes()
        self.manifest = self.log.write(
            self.manifest, {store: list(rows.items()) for store, rows in changes.items()}, copy
        )
        copy.close_view()
        for store, rows in changes.items():
            for key, value in rows.items():
                self.model[store].pop(key, None)
                if value is not None:
                    self.model[store][key] = value

    def changes(self) -> dict[str, dict[bytes, bytes | None]]:
        pick, most = self.random, self.random.choice([3, 50, 400])
        keys = [b"%d" % pick.randrange(3000) + b"x" * pick.choice([0] * 20 + [500]) for _ in range(most)]
        sizes = [1, 10, 100] * 20 + [5000]
        return {
            store: {key: None if pick.random() < 0.2 else pick.randbytes(pick.choice(sizes)) for key in keys}
            for store in pick.sample(STORES, pick.randrange(1, 3))
        }

    def opened(self) -> LocalCopy:
        """Open the copy as a batch does, at the version that is committed."""
        copy = self.engine.open(self.directory)
        self.log.restore(self.manifest, copy)
        return copy

    def flip(self, files: Callable[[Path], bool] = lambda _: True) -> Path:
        """Flip a random bit. Large files are chosen more often than small ones."""
        found = [path for path in sorted(Path(self.directory).rglob("*")) if path.is_file() and files(path)]
        sizes = [path.stat().st_size for path in found]
        (path,) = self.random.choices(found, [size + 500 if size else 0 for size in sizes])
        data = bytearray(path.read_bytes())
        data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        path.write_bytes(data)
        return path

    def read(self) -> Content:
        """Read everything by scans in both directions and key by key. If damage is detected, start again once."""
        try:
            return self._read()
        except DamagedCopyError:
            self.found = True
        gc.collect()
        return self._read()

    def _read(self) -> Content:
        copy = self.opened()
        try:
            view = copy.open_view()
            readers = {store: view.open(store) for store in STORES}
            found = {store: dict(reader.scan(None, None)) for store, reader in readers.items()}
            for store, reader in readers.items():
                assert dict(reader.scan(None, None, reverse=True)) == found[store]
                for key in self.model[store].keys() | {b"0", b"none"}:
                    assert reader.get(key) == found[store].get(key)
            return found
        finally:
            copy.close_view()


@pytest.mark.timeout(60 + 2 * FLIPS)
@pytest.mark.parametrize("name", ["lmdb", "rocksdb"])
def test_flipped_bits_of_a_copy_never_return_wrong_values(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine, outcomes = COPIES[name], Counter[str]()
    for seed in range(FLIPS if name == "lmdb" else FLIPS // 3):
        case = DamagedCopyCase(engine, seed)
        try:
            if case.random.random() < 0.5:
                case.opened().close_view()  # else the last batch is parked
            engine.die(case.directory)
            caplog.clear()
            path = case.flip()
            kind = "".join(c for c in path.name.split("-")[0] if not c.isdigit())
            assert case.read() == case.model, (seed, path)
            case.batch()
            case.batch()
            assert case.read() == case.model, (seed, path)
            detected = case.found or any(
                "is damaged" in text or "cannot be used" in text for text in caplog.messages
            )
            outcomes[f"{kind}: {'found' if detected else 'no matter'}"] += 1
        finally:
            engine.discard(case.directory)
    sys.stderr.write(f"\n{name}: {dict(sorted(outcomes.items()))}\n")
    assert any("found" in outcome for outcome in outcomes)


def test_a_flipped_bit_under_an_open_copy_is_detected_when_its_row_is_read(tmp_path: Path) -> None:
    """Bytes change while LMDB has the file mapped. A function that ignores the error changes nothing."""
    engine = COPIES["lmdb"]
    case = DamagedCopyCase(engine, 1)
    shutil.rmtree(case.directory)
    case.directory = str(tmp_path / "task")
    copy = case.opened()
    (file,) = Path(case.directory).glob("data-*.mdb")
    (key, value), *_ = [row for row in case.model["s"].items() if 50 < len(row[1]) < 2000]
    data = file.read_bytes()
    with file.open("r+b") as mapped:
        position = data.find(value)
        while position >= 0:
            mapped.seek(position + 20)
            mapped.write(bytes([data[position + 20] ^ 4]))
            position = data.find(value, position + 1)
    reader = copy.open_view().open("s")
    with pytest.raises(
        DamagedCopyError, match=r"local copy in .*/task is damaged: data-.*, store 's': a row does not match"
    ):
        reader.get(key)
    with pytest.raises(DamagedCopyError, match="deleted and rebuilt from the log"):
        copy.close_view()
    assert (copy.version(), copy.why_empty()) == (None, "the local copy was damaged")
    assert case.read() == case.model
    engine.die(case.directory)
