"""What the parts share: the broker, the scratch directory, and new names for topics."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from millstream.testing import EmbeddedKafka

PARTITIONS = 4


@dataclass(frozen=True)
class Stage:
    """Where a run takes place.

    Attributes:
        kafka: The one broker of the run.
        scratch: A directory that goes away with the run.
        records: Records of the race's input; everything else is sized after it.
    """

    kafka: EmbeddedKafka
    scratch: Path
    records: int
    _numbers: count[int] = field(default_factory=lambda: count(1), repr=False)

    @property
    def keys(self) -> int:
        """Different keys of the race's input: a tenth of the records."""
        return max(self.records // 10, 1)

    def topic(
        self, purpose: str, partitions: int = PARTITIONS, config: Mapping[str, str | int] | None = None
    ) -> str:
        """Create a new topic."""
        name = f"{purpose}-{next(self._numbers)}"
        self.kafka.create_topic(name, partitions, config)
        return name

    def directory(self, purpose: str) -> Path:
        """Create a new directory."""
        path = self.scratch / f"{purpose}-{next(self._numbers)}"
        path.mkdir()
        return path


@contextmanager
def full_speed_stage(records: int) -> Iterator[Stage]:
    """Yield a stage with a broker that the JVM optimises; both go away at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="millstream-bench-", ignore_cleanup_errors=True) as scratch,
        EmbeddedKafka(heap="1g", java_options=["-XX:TieredStopAtLevel=4"]) as kafka,
    ):
        yield Stage(kafka, Path(scratch), records)
