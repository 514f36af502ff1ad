"""Orders: what a running application has been told to leave unread for now, and how fast to read the rest.

An order is about topics that are read from the broker. To *pause* adds topics to those that are not read, to *resume* takes
some away again, and to *throttle* limits the records per second of one. The planner hears of the orders with every planning,
so they are in force from the next micro-batch on.

Orders end with the application, unless a topic is paused to be *kept*: then it is in the file ``paused.json`` beside the
lease, and the next start finds it there. Only who holds the lease writes that file. Rates that are to last are a setting.
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
class Orders:
    """What is ordered at a moment.

    Attributes:
        paused: Topics that are not read.
        kept: Those of them that are still paused after a restart.
        rates: Most records per second, per topic that is throttled.

    Example:
        >>> orders = Orders().pausing({"a", "b"}).resuming({"b"}).throttling("c", 5)
        >>> sorted(orders.paused), orders.rates
        (['a'], {'c': 5})
    """

    paused: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    rates: Mapping[str, int] = field(default_factory=dict)

    def pausing(self, topics: Collection[str], *, keep: bool = False) -> Orders:
        """Return the orders with more topics paused; what is kept already stays so."""
        return replace(
            self, paused=self.paused.union(topics), kept=self.kept.union(topics) if keep else self.kept
        )

    def resuming(self, topics: Collection[str]) -> Orders:
        """Return the orders with fewer topics paused, now and after a restart."""
        return replace(self, paused=self.paused.difference(topics), kept=self.kept.difference(topics))

    def throttling(self, topic: str, records_per_second: int | None) -> Orders:
        """Return the orders with another rate of a topic, None for none.

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


class StandingOrders:
    """The orders of an application that is at work. Owned by it, given by any of its threads; guarded by a lock.

    Args:
        home: The application's directory, whose lease is held.
        orders: What holds at the start.

    Attributes:
        now: The orders in force.
    """

    def __init__(self, home: Path, orders: Orders) -> None:
        self.now = orders
        self._home = home
        self._lock = threading.Lock()

    @classmethod
    def at_start(cls, home: Path, known: Iterable[str], rates: Mapping[str, int]) -> StandingOrders:
        """Begin with what was to be kept, and say so: nobody else would remember why a topic is not read.

        Args:
            home: The application's directory, whose lease is held.
            known: The topics that are read from the broker; others were read by an earlier topology and are let go.
            rates: Most records per second, as the settings say.

        Raises:
            ControlError: If the file of kept topics cannot be read.
        """
        found = _kept(home)
        paused = found.intersection(known)
        if paused:
            log.warning("still paused, as was asked for before this start: %s", ", ".join(sorted(paused)))
        if found - paused:
            log.warning("paused before, and no longer read: %s", ", ".join(sorted(found - paused)))
        return cls(home, Orders(paused, paused, dict(rates)))

    def pause(self, topics: Collection[str], *, keep: bool) -> None:
        """Read topics no more."""
        with self._lock:
            self._become(self.now.pausing(topics, keep=keep))

    def resume(self, topics: Collection[str]) -> None:
        """Read topics again."""
        with self._lock:
            self._become(self.now.resuming(topics))

    def throttle(self, topic: str, records_per_second: int | None) -> None:
        """Limit the records per second of a topic, or no longer.

        Raises:
            ControlError: If the rate is less than one record per second.
        """
        with self._lock:
            self._become(self.now.throttling(topic, records_per_second))

    def _become(self, orders: Orders) -> None:
        """Write what is to be kept first: an order that is obeyed is one that lasts as long as was asked for."""
        if orders.kept != self.now.kept:
            _keep(self._home, orders.kept)
        self.now = orders


def _kept(home: Path) -> frozenset[str]:
    file = home / _FILE
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        if told["checksum"] != _checksum(told["topics"]):
            raise ValueError("its checksum does not fit")
        return frozenset(told["topics"])
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ControlError(
            f"the list of paused topics {str(file)!r} cannot be read ({error}); delete the file and pause again what is to be "
            "paused"
        ) from None


def _checksum(topics: list[str]) -> int:
    """Return a checksum: with another letter, a topic would be read although it is paused."""
    return zlib.crc32(json.dumps(topics).encode())


def _keep(home: Path, topics: frozenset[str]) -> None:
    file = home / _FILE
    partial = file.with_suffix(".partial")
    try:
        if topics:
            told = {"topics": sorted(topics), "checksum": _checksum(sorted(topics))}
            partial.write_text(json.dumps(told), encoding="utf-8")
            os.replace(partial, file)
        else:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise ControlError(
            f"what is paused cannot be kept over a restart: {str(file)!r} cannot be written ({error.strerror}). Nothing was "
            "changed; without keep=True it needs no file"
        ) from None
