"""Flow control: the topics that a running application does not read for now, and how fast it reads the others.

It is about topics that are read from the broker. To *pause* adds topics to those that are not read, to *resume* removes some of
them, and to *throttle* limits the records per second of one. The planner gets the limits each time it plans, so they are in
force from the next micro-batch on.

Limits end with the application, unless a topic is paused to be *kept*: then it is in the file ``paused.json`` beside the lease,
and the next start reads it there. Only the holder of the lease writes that file. Rates that are to last are a setting.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from millstream.core.model.errors import ControlError

log = logging.getLogger("millstream.application")

_FILE = "paused.json"


@dataclass(frozen=True)
class FlowLimits:
    """Which topics are paused, and which are throttled.

    Attributes:
        kept: Those that stay paused after a restart.
        rates: Maximum records per second, by throttled topic.

    Example:
        >>> limits = FlowLimits().pausing({"a", "b"}).resuming({"b"}).throttling("c", 5)
        >>> sorted(limits.paused), limits.rates
        (['a'], {'c': 5})
    """

    paused: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    rates: Mapping[str, int] = field(default_factory=dict)

    def pausing(self, topics: Collection[str], *, keep: bool = False) -> FlowLimits:
        """Return the limits with more paused topics; those that were kept stay so."""
        return replace(
            self, paused=self.paused.union(topics), kept=self.kept.union(topics) if keep else self.kept
        )

    def resuming(self, topics: Collection[str]) -> FlowLimits:
        """Return the limits with fewer paused topics, now and after a restart."""
        return replace(self, paused=self.paused.difference(topics), kept=self.kept.difference(topics))

    def throttling(self, topic: str, records_per_second: int | None) -> FlowLimits:
        """Return the limits with another rate of a topic; None removes it.

        Raises:
            ControlError: If the rate is less than one record per second.
        """
        others = {name: rate for name, rate in self.rates.items() if name != topic}
        if records_per_second is None:
            return replace(self, rates=others)
        if not isinstance(records_per_second, int) or records_per_second < 1:
            raise ControlError(
                f"the rate of topic {topic!r} is a whole number of records per second and at least 1, not "
                f"{records_per_second}; to read nothing of a topic, pause it"
            )
        return replace(self, rates={**others, topic: records_per_second})


class FlowControl:
    """The flow control of an application. Owned by it, changed by any of its threads; guarded by a lock.

    Args:
        home: The application's directory; the caller has the lease.
    """

    def __init__(self, home: Path, limits: FlowLimits) -> None:
        self.limits = limits
        self._home = home
        self._lock = threading.Lock()

    @classmethod
    def at_start(cls, home: Path, known: Iterable[str], rates: Mapping[str, int]) -> FlowControl:
        """Start with the topics that stay paused, and log them, so that nobody wonders why they are not read.

        Args:
            known: The topics that are read from the broker; paused topics of an earlier topology are forgotten.
            rates: Maximum records per second, from the settings.

        Raises:
            ControlError: If the file of kept topics cannot be read.
        """
        kept = _kept(home)
        paused = kept.intersection(known)
        if paused:
            log.warning("topics that stay paused from an earlier run: %s", ", ".join(sorted(paused)))
        if kept - paused:
            log.warning("paused before, and no longer read: %s", ", ".join(sorted(kept - paused)))
        return cls(home, FlowLimits(paused, paused, dict(rates)))

    def pause(self, topics: Collection[str], *, keep: bool) -> None:
        with self._lock:
            self._become(self.limits.pausing(topics, keep=keep))

    def resume(self, topics: Collection[str]) -> None:
        with self._lock:
            self._become(self.limits.resuming(topics))

    def throttle(self, topic: str, records_per_second: int | None) -> None:
        """Limit the records per second of a topic; None lifts the limit.

        Raises:
            ControlError: If the rate is less than one record per second.
        """
        with self._lock:
            self._become(self.limits.throttling(topic, records_per_second))

    def _become(self, limits: FlowLimits) -> None:
        """Store what is kept, then apply the limits, so that they last as long as promised."""
        if limits.kept != self.limits.kept:
            _keep(self._home, limits.kept)
        self.limits = limits


def _kept(home: Path) -> frozenset[str]:
    file = home / _FILE
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
        if written["checksum"] != _checksum(written["topics"]):
            raise ValueError("its checksum does not fit")
        return frozenset(written["topics"])
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ControlError(
            f"the list of paused topics {str(file)!r} cannot be read ({error}); delete the file and pause the topics "
            "again"
        ) from None


def _checksum(topics: list[str]) -> int:
    """Return a checksum of topic names, because a changed name would resume a paused topic."""
    return zlib.crc32(json.dumps(topics).encode())


def _keep(home: Path, topics: frozenset[str]) -> None:
    file = home / _FILE
    partial = file.with_suffix(".partial")
    try:
        if topics:
            written = {"topics": sorted(topics), "checksum": _checksum(sorted(topics))}
            partial.write_text(json.dumps(written), encoding="utf-8")
            os.replace(partial, file)
        else:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise ControlError(
            f"the pause cannot be kept across restarts: {str(file)!r} cannot be written ({error.strerror}). Nothing was "
            "changed; a pause without keep=True needs no file"
        ) from None
