"""What the demo shows: one immutable scene, which each change replaces.

The threads of the demo write the scene, and the main thread reads it as a whole, so a picture never mixes two moments.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any


@dataclass(frozen=True)
class BoardStep:
    """A step of the demo. Times are monotonic seconds.

    Attributes:
        ended: None while the step runs.
        result: The result, such as the address of what the step started.
    """

    name: str
    began: float
    ended: float | None = None
    result: str = ""
    failed: bool = False

    def seconds(self, now: float) -> float:
        return (self.ended if self.ended is not None else now) - self.began


@dataclass(frozen=True)
class Scene:
    """Everything that is shown.

    Attributes:
        written: Lines that the broker has acknowledged.
        counted: Lines whose offsets the application has committed.
        records_per_s: Records that the application reads per second.
    """

    total: int
    steps: tuple[BoardStep, ...] = ()
    written: int = 0
    counted: int = 0
    state: str = ""
    batch: int = -1
    records_per_s: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        return max(self.written - self.counted, 0)

    def top(self, number: int) -> list[tuple[str, int]]:
        """Return the most frequent words; words with equal counts are in alphabetical order."""
        return sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))[:number]


class Board:
    """The current scene. Thread-safe."""

    def __init__(self, total: int) -> None:
        self._lock = threading.Lock()
        self._scene = Scene(total)

    def scene(self) -> Scene:
        with self._lock:
            return self._scene

    def note(self, **changes: Any) -> None:
        with self._lock:
            self._scene = replace(self._scene, **changes)

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Show a step while the block runs; the block appends its result to the list."""
        result: list[str] = []
        with self._lock:
            self._scene = replace(self._scene, steps=(*self._scene.steps, BoardStep(name, monotonic())))
        try:
            yield result
        except BaseException:
            self._end(name, "", failed=True)
            raise
        self._end(name, "  ".join(result), failed=False)

    def _end(self, name: str, result: str, *, failed: bool) -> None:
        with self._lock:
            steps = tuple(
                replace(step, ended=monotonic(), result=result, failed=failed) if step.name == name else step
                for step in self._scene.steps
            )
            self._scene = replace(self._scene, steps=steps)
