"""The methods that questions can call on each kind of store, with their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from millstream.core.model.errors import QueryError
from millstream.core.topology.stores import (
    KeyValueSpec,
    LruSpec,
    SessionSpec,
    StoreSpec,
    VersionedSpec,
    WindowSpec,
)

Scope = Literal["key", "forwards", "backwards", "sum", "info"]
"""Which tasks answer: the one with the key, all in ascending or descending order, or all with one number or description each."""


@dataclass(frozen=True)
class Method:
    """A method of a kind of store.

    Attributes:
        keys: The names of the arguments that are keys. They come first.
        optional: How many arguments, from the last, may be missing.
        unbounded: Whether a key may be None, which means no bound.
    """

    scope: Scope
    keys: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    optional: int = 0
    unbounded: bool = False

    @property
    def signature(self) -> str:
        """The arguments as text; those in brackets may be missing."""
        names = (*self.keys, *self.times)
        required = len(names) - self.optional
        shown = [*names[:required], *(f"[{name}]" for name in names[required:])]
        return f"({', '.join(shown)})"


def _ranges(name: str, *keys: str, times: tuple[str, ...] = (), optional: int = 0) -> dict[str, Method]:
    """Return a method that scans keys, and its reverse form."""
    unbounded = len(keys) > 1
    return {
        name: Method("forwards", keys, times, optional, unbounded),
        f"reverse_{name}": Method("backwards", keys, times, optional, unbounded),
    }


_KEY: Final = ("key",)
_BOUNDS: Final = ("key_from", "key_to")
_TIMES: Final = ("time_from", "time_to")
_COMMON: Final = {"info": Method("info")}
_KEY_VALUES: Final[Mapping[str, Method]] = {
    "get": Method("key", _KEY),
    **_ranges("range", "low", "high", optional=2),
    "prefix_scan": Method("forwards", ("prefix",)),
    **_ranges("all"),
    "approximate_count": Method("sum"),
    **_COMMON,
}
METHODS: Final[Mapping[type[StoreSpec], Mapping[str, Method]]] = {
    KeyValueSpec: _KEY_VALUES,
    LruSpec: _KEY_VALUES,
    WindowSpec: {
        "fetch": Method("key", _KEY, _TIMES, optional=1),
        "reverse_fetch": Method("key", _KEY, _TIMES),
        **_ranges("fetch_range", *_BOUNDS, times=_TIMES),
        **_ranges("fetch_all", times=_TIMES),
        **_ranges("all"),
        **_COMMON,
    },
    SessionSpec: {
        "fetch": Method("key", _KEY),
        "reverse_fetch": Method("key", _KEY),
        "fetch_session": Method("key", _KEY, ("start", "end")),
        "find_sessions": Method("key", _KEY, ("earliest_end", "latest_start")),
        **_ranges("fetch_range", *_BOUNDS),
        **_ranges("all"),
        **_COMMON,
    },
    VersionedSpec: {"get": Method("key", _KEY, ("as_of",), optional=1), **_ranges("all"), **_COMMON},
}
"""The methods of each kind of store."""


def method_of(name: str, spec: StoreSpec) -> Method:
    methods = METHODS[type(spec)]
    found = methods.get(name)
    if found is None:
        raise QueryError(
            f"store {spec.name!r} has no method {name!r}; a store of the kind {spec.kind!r} has {', '.join(methods)}"
        )
    return found
