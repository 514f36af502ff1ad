"""``until=`` of ``run`` and ``start``: when an application ends without being stopped."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from millstream.core.model.durations import since_epoch_ms
from millstream.core.model.errors import MillstreamError, SettingsError
from millstream.core.runtime.admission import RunEnd

if TYPE_CHECKING:
    from millstream.edge.application.running_application import RunningApplication

Until: TypeAlias = Literal["end"] | int | datetime | timedelta | None
"""When an application ends without being stopped:

* ``"end"``: after it has processed the records that are in the topics at the start;
* an int: the same, but at most that many records of external topics, taken evenly from their partitions;
* a ``datetime``: the same, but each partition only up to its first record with that timestamp or a later one (UTC if it has no zone);
* a ``timedelta``: after that time, in any case;
* None: never.
"""


@dataclass(frozen=True)
class Bound:
    """When a run ends.

    Attributes:
        end: Where the run stops reading; None if it reads without end.
        lasts_s: After how many seconds the run is stopped; None for never.
    """

    end: RunEnd | None = None
    lasts_s: float | None = None

    @classmethod
    def of(cls, until: Any) -> Bound:
        """Parse a user's ``until``.

        Raises:
            SettingsError: If the value is none of the forms of ``until``.

        Example:
            >>> Bound.of(10), Bound.of(timedelta(seconds=1))
            (Bound(end=RunEnd(records=10, before_ms=None), lasts_s=None), Bound(end=None, lasts_s=1.0))
        """
        if until is None:
            return cls()
        if until == "end":
            return cls(RunEnd())
        if isinstance(until, int) and not isinstance(until, bool) and until > 0:
            return cls(RunEnd(records=until))
        if isinstance(until, datetime):
            return cls(RunEnd(before_ms=since_epoch_ms(until)))
        if isinstance(until, timedelta) and until > timedelta(0):
            return cls(lasts_s=until.total_seconds())
        raise SettingsError(
            f"until={until!r}: give 'end', a number of records of at least 1, a datetime, a timedelta above 0, or None"
        )

    def watch(self, running: RunningApplication) -> None:
        def stop() -> None:
            with suppress(MillstreamError):  # an error of the application, which its await_termination raises
                if not running.await_termination(self.lasts_s):
                    running.stop()

        if self.lasts_s is not None:
            threading.Thread(target=stop, name="millstream-until", daemon=True).start()
