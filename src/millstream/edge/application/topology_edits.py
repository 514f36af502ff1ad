"""Edits: what an edited topology keeps and drops of the running one, and what it begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from millstream.core.topology.plan import Plan
from millstream.edge.checkpoint.continuity import Continuity
from millstream.edge.control.flow_control import FlowControl
from millstream.edge.lab.html import table_html

_NO_CHANGE: Final = "changes no store and no topic"
_EMPTY_S: Final = 30.0
_POLL_S: Final = 0.05
_EMPTY_CHECKS: Final = 10
"""How many consecutive checks must find a topic empty: only a later plan sees what a running micro-batch writes."""


@dataclass(frozen=True, repr=False)
class TopologyEdit:
    """What an edit does. Displays itself as one line per kind of change.

    Attributes:
        kept: Stores that keep their content.
        begun: Stores that begin empty.
        dropped: Stores whose content is deleted.
        reads: Topics that are newly read.
        reads_no_longer: Topics that are no longer read.
        writes: Topics that are newly written.
        writes_no_longer: Topics that are no longer written.
    """

    kept: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    reads_no_longer: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    writes_no_longer: tuple[str, ...] = ()

    def _changes(self) -> list[tuple[str, str]]:
        parts = {
            "keeps": self.kept,
            "begins": self.begun,
            "drops": self.dropped,
            "reads": self.reads,
            "no longer reads": self.reads_no_longer,
            "writes": self.writes,
            "no longer writes": self.writes_no_longer,
        }
        return [(verb, ", ".join(names)) for verb, names in parts.items() if names]

    def __str__(self) -> str:
        return "\n".join(f"{verb} {names}" for verb, names in self._changes()) or _NO_CHANGE

    __repr__ = __str__

    def _repr_html_(self) -> str:
        changes = self._changes()
        return table_html(("the edit", ""), changes) if changes else f"<p>{_NO_CHANGE}</p>"


def edit_of(before: Plan, now: Continuity) -> TopologyEdit:
    """Compare the running plan with the edited plan, which continues the checkpoint."""
    stores = stores_of_edit(before.store_fingerprints(), now)
    read, written = (_external_topics(before, before.broker_topics), set(before.sink_topics))
    reads, writes = (_external_topics(now.plan, now.plan.broker_topics), set(now.plan.sink_topics))
    topics = (reads - read, read - reads, writes - written, written - writes)
    return TopologyEdit(*(tuple(sorted(names)) for names in (*stores, *topics)))


def stores_of_edit(before: Iterable[str], now: Continuity) -> tuple[set[str], set[str], set[str]]:
    old = {now.renamed_stores.get(store, store) for store in before}
    new = set(now.plan.store_fingerprints())
    return old & new, new - old, old - new


def _external_topics(plan: Plan, topics: Iterable[str]) -> set[str]:
    return set(topics) - plan.internal_topics.keys()


@contextmanager
def emptied(
    flow_control: FlowControl, lag: Callable[[], Mapping[str, int]], before: Plan, now: Plan
) -> Iterator[None]:
    """Drain the internal topics that an edit removes. External topics are not read for this and while the block runs.

    Args:
        lag: Returns the number of unprocessed records by topic.
    """
    removed = before.internal_topics.keys() & set(before.broker_topics) - set(now.broker_topics)
    if not removed:
        yield
        return
    with flow_control.holding(_external_topics(before, before.broker_topics)):
        deadline, empty = time.monotonic() + _EMPTY_S, 0
        while empty < _EMPTY_CHECKS and time.monotonic() < deadline:
            unprocessed = lag()
            empty = 0 if any(unprocessed.get(topic) for topic in removed) else empty + 1
            time.sleep(_POLL_S)
        yield
