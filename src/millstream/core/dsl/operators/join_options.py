"""The options of stream joins, which depend on the other side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Required, TypedDict

from millstream.core.dsl.graph import LateConsumer
from millstream.core.dsl.join_windows import JoinWindows
from millstream.core.model.durations import Duration
from millstream.core.model.errors import TopologyError
from millstream.core.model.record import V2, K, V
from millstream.core.model.serdes import Serde
from millstream.core.topology.stores import StoreLike

if TYPE_CHECKING:
    from millstream.core.dsl.forward import KStream


class WithTable(TypedDict, Generic[K, V], total=False):
    """The options of a join with a table; see ``KStream.join``."""

    key: Serde[K] | None
    value: Serde[V] | None
    grace: Duration | None
    store: StoreLike | None
    name: str | None


class WithStream(TypedDict, Generic[K, V, V2], total=False):
    """The options of a join with a stream; see ``KStream.join``."""

    windows: Required[JoinWindows]
    key: Serde[K] | None
    value: Serde[V] | None
    other_value: Serde[V2] | None
    store: StoreLike | None
    name: str | None
    late: Callable[[KStream[K, V]], object] | None
    other_late: Callable[[KStream[K, V2]], object] | None


class JoinOptions(NamedTuple):
    """The options of a stream join, None if not given; see ``KStream.join``."""

    windows: JoinWindows | None = None
    key: Serde[Any] | None = None
    value: Serde[Any] | None = None
    other_value: Serde[Any] | None = None
    grace: Duration | None = None
    store: StoreLike | None = None
    late: LateConsumer | None = None
    other_late: LateConsumer | None = None


_OPTIONS_WITH: Final = {
    "a table": {"key", "value", "grace", "store"},
    "a global table": set[str](),
    "another stream": {"windows", "key", "value", "other_value", "store", "late", "other_late"},
}

_HINTS: Final = {
    "grace": " (a join of two streams takes it from windows=ms.JoinWindows(...))",
    "late": " (no record is late for a table)",
    "other_late": " (no record is late for a table)",
}


def check_options(options: JoinOptions, side: str) -> None:
    """Reject options that do not apply to a side: "a table", "a global table" or "another stream"."""
    for option, value in options._asdict().items():
        if value is not None and option not in _OPTIONS_WITH[side]:
            raise TopologyError(
                f"{option}=... has no effect in a join of a stream with {side}{_HINTS.get(option, '')}; leave it out"
            )
