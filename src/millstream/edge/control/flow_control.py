"""Flow control: the topics that a running application temporarily does not read, and how fast it reads the others.

Flow control applies to topics that are read from the broker. *Pause* stops reading topics, *resume* continues, and *throttle* limits the
records per second of one topic. The planner receives the limits each time it plans, so they take effect with the next micro-batch.

Limits end with the application, unless a pause is *kept*: the topic is then in the file ``paused.json`` beside the lease, which the next
start reads. Only the holder of the lease writes this file. For permanent rates, use the setting ``max_records_per_second``.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from millstream.core.model.errors import ControlError

log = logging.getLogger("millstream.application")

_FILE = "paused.json"


@dataclass(frozen=True)
class FlowLimits:
    """The paused and the throttled topics.

    Attributes:
        kept: Topics that stay paused after a restart.
        rates: Maximum records per second, by throttled topic.
        held: Topics that are not read while an edit drains internal topics. Nobody can resume them.

    Example:
        >>> limits = FlowLimits().pausing({"a", "b"}).resuming({"b"}).throttling("c", 5)
        >>> sorted(limits.paused), limits.rates
        (['a'], {'c': 5})
    """

    paused: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    rates: Mapping[str, int] = field(default_factory=dict)
    held: frozenset[str] = frozenset()

    @property
    def unread(self) -> frozenset[str]:
        """The topics that are not read now."""
        return self.paused | self.held

    def among(self, known: Collection[str]) -> FlowLimits:
        """Return the limits of the topics that are read."""
        rates = {topic: rate for topic, rate in self.rates.items() if topic in known}
        return replace(
            self, paused=self.paused.intersection(known), kept=self.kept.intersection(known), rates=rates
        )

    def pausing(self, topics: Collection[str], *, keep: bool = False) -> FlowLimits:
        """Return the limits with more paused topics; kept topics stay kept."""
        return replace(
            self, paused=self.paused.union(topics), kept=self.kept.union(topics) if keep else self.kept
        )

    def resuming(self, topics: Collection[str]) -> FlowLimits:
        """Return the limits with fewer paused topics, now and after a restart."""
        return replace(self, paused=self.paused.difference(topics), kept=self.kept.difference(topics))

    def throttling(self, topic: str, records_per_second: int | None) -> FlowLimits:
        """Return the limits with a new rate for a topic; None removes the rate.

        Raises:
            ControlError: If the rate is less than one record per second.
        """
        others = {name: rate for name, rate in self.rates.items() if name != topic}
        if records_per_second is None:
            return replace(self, rates=others)
        if not isinstance(records_per_second, int) or records_per_second < 1:
            raise ControlError(
                f"the rate of topic {topic!r} must be a whole number of records per second, at least 1, not "
                f"{records_per_second}; to read nothing of a topic, pause it"
            )
        return replace(self, rates={**others, topic: records_per_second})


class FlowControl:
    """The flow control of an application. Any thread may change it; a lock guards it.

    Args:
        home: The application's directory; the caller holds the lease.
        unread: Topics that stay paused and are not read. The file contains them until :meth:`forget_unread`.
    """

    def __init__(self, home: Path, limits: FlowLimits, unread: Collection[str] = ()) -> None:
        self.limits = limits
        self._home = home
        self._unread = frozenset(unread)
        self._lock = threading.Lock()

    @classmethod
    def at_start(cls, home: Path, known: Iterable[str], rates: Mapping[str, int]) -> FlowControl:
        """Start with the topics that stay paused, and log a warning that names them.

        Args:
            known: The topics that are read from the broker. Other kept topics stay in the file until :meth:`forget_unread`.
            rates: Maximum records per second, from the settings.

        Raises:
            ControlError: If the file of kept topics cannot be read.
        """
        kept = _read_kept_topics(home)
        paused = kept.intersection(known)
        if paused:
            log.warning("topics that are still paused from an earlier run: %s", ", ".join(sorted(paused)))
        if kept - paused:
            log.warning(
                "topics that were paused in an earlier run and are no longer read: %s",
                ", ".join(sorted(kept - paused)),
            )
        return cls(home, FlowLimits(paused, paused, dict(rates)), kept - paused)

    def forget_unread(self) -> None:
        """Remove kept topics that are not read from the file. Called when the topology runs: a start that is refused changes nothing.

        Raises:
            ControlError: If the file cannot be written.
        """
        with self._lock:
            if self._unread:
                _write_kept_topics(self._home, self.limits.kept)
                self._unread = frozenset()

    def pause(self, topics: Collection[str], *, keep: bool) -> None:
        with self._lock:
            self._set_limits(self.limits.pausing(topics, keep=keep))

    def resume(self, topics: Collection[str]) -> None:
        with self._lock:
            self._set_limits(self.limits.resuming(topics))

    def throttle(self, topic: str, records_per_second: int | None) -> None:
        """Limit the records per second of a topic; None removes the limit.

        Raises:
            ControlError: If the rate is less than one record per second.
        """
        with self._lock:
            self._set_limits(self.limits.throttling(topic, records_per_second))

    @contextmanager
    def holding(self, topics: Collection[str]) -> Iterator[None]:
        """Do not read topics while the block runs, whatever is paused or resumed meanwhile."""
        with self._lock:
            self.limits = replace(self.limits, held=frozenset(topics))
        try:
            yield
        finally:
            with self._lock:
                self.limits = replace(self.limits, held=frozenset())

    def forget_others(self, known: Collection[str]) -> None:
        """Remove the limits of topics that an edited topology no longer reads. They could not be resumed any more.

        Raises:
            ControlError: If the file cannot be written.
        """
        with self._lock:
            self._set_limits(self.limits.among(known))

    def _set_limits(self, limits: FlowLimits) -> None:
        """Store the kept topics before applying the limits: a failed write must change nothing."""
        if limits.kept != self.limits.kept:
            _write_kept_topics(self._home, limits.kept | self._unread)
        self.limits = limits


def _read_kept_topics(home: Path) -> frozenset[str]:
    file = home / _FILE
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
        if written["checksum"] != _checksum(written["topics"]):
            raise ValueError("its checksum does not match")
        return frozenset(written["topics"])
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ControlError(
            f"the list of paused topics {str(file)!r} cannot be read ({error}); delete the file and pause the topics "
            "again"
        ) from None


def _checksum(topics: list[str]) -> int:
    """Return a checksum of topic names, because a corrupted name would resume a paused topic."""
    return zlib.crc32(json.dumps(topics).encode())


def _write_kept_topics(home: Path, topics: frozenset[str]) -> None:
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
            f"the pause cannot be kept across restarts: {str(file)!r} cannot be written ({error.strerror or error}). Nothing was "
            "changed; a pause without keep=True needs no file"
        ) from None
