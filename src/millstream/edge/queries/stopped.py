"""Reads a store of a stopped application from its checkpoint as an Arrow table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millstream.core.model import serdes
from millstream.core.model.errors import SettingsError, StoreError
from millstream.core.model.serdes import Serde
from millstream.core.queries.question import order_of
from millstream.core.queries.text_questions import as_json_value
from millstream.core.state.memory import MemoryStores
from millstream.core.state.opening import open_store
from millstream.core.topology.stores import KeyValueSpec, OperatorUse, SessionSpec, StoreSpec, WindowSpec
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress, files_of
from millstream.drivers.spark.driver.spark_session import configured, session_for
from millstream.drivers.spark.driver.stored import StoredTask, stored_tasks
from millstream.edge.checkpoint.checkpoint_health import sound_progress

if TYPE_CHECKING:
    import pyarrow as pa

_FOREVER_MS: Final = 1 << 61
_TIMESTAMPED: Final = "timestamped-"
_SUB_TOPOLOGY: Final = re.compile(r"^sub-topology \d+, ")
_KNOWN: Final = ("string", "bytes", "int16", "int32", "int64", "float32", "float64", "uuid", "json")
"""Serdes without arguments, which are found by name."""

_SPECS: Final[Mapping[str, Callable[..., StoreSpec]]] = {
    "key-value": KeyValueSpec,
    "window": lambda *given, **more: WindowSpec(*given, retention=_FOREVER_MS, size=0, **more),
    "window-with-open": lambda *given, **more: WindowSpec(
        *given, retention=_FOREVER_MS, size=0, _operator=OperatorUse(with_open=True), **more
    ),
    "session": lambda *given, **more: SessionSpec(*given, retention=_FOREVER_MS, **more),
    "session-with-open": lambda *given, **more: SessionSpec(
        *given, retention=_FOREVER_MS, _operator=OperatorUse(with_open=True), **more
    ),
}
"""Creates the spec of a store, by its kind."""


def read_store(
    checkpoint: str | Path, name: str, *, key: Serde[Any] | None = None, value: Serde[Any] | None = None
) -> pa.Table:
    """Read a store of a stopped application from its checkpoint, on the active Spark session or a new local one.

    This needs neither the application nor its local copies. It loads the content of the store as of the newest complete micro-batch into
    the memory of this process.

    Args:
        checkpoint: The checkpoint: ``<state_dir>/<application id>/checkpoint``, or the application's ``checkpoint_location``.
        name: The name of the store.
        key: Serde of the keys. None if it is a serde of ``ms.serdes`` without arguments, which is found by name.
        value: Serde of the values; None as for keys.

    Returns:
        A table with the columns ``key`` and ``value``, of the Arrow types of the deserialised objects; ``timestamp`` (int64) if the
        store has timestamps; ``start`` (int64) for windows, and ``start`` and ``end`` (int64) for sessions. Times are ms since the epoch.
        The table includes windows and sessions that have expired but are not yet deleted. Values that Arrow cannot represent as plain data
        are text. Rows are in the order of the serialised keys. The metadata of the schema has the micro-batch as ``millstream.batch``, and
        as ``millstream.offsets`` the offsets that it has read, a JSON object by topic and partition.

    Raises:
        CheckpointError: If the checkpoint is damaged.
        StoreError: If no micro-batch is complete, there is no such store, its kind cannot be read, or a serde must be given.

    Source: Spark's state data source (``spark.read.format("statestore")``).

    Example:
        >>> counts = ms.read_store("/var/lib/millstream/shop/checkpoint", "counts")  # doctest: +SKIP
        >>> counts.to_pandas()  # doctest: +SKIP
    """
    import pyarrow as pa

    location = _url(checkpoint)
    session = session_for("millstream-read-store", None, {})
    progress = sound_progress(files_of(location, lambda: session), location)
    if progress is None or progress.last_complete < 0:
        raise StoreError(
            f"the checkpoint {location} has no complete micro-batch, so there is nothing to read yet; start the application"
        )
    with configured(session, {}, progress.shuffle_partitions, location):
        found: list[tuple[Any, dict[str, object]]] = []
        for task in stored_tasks(session, location, progress.last_complete, name):
            spec = _spec(name, task.fingerprint, key, value)
            found += _rows(spec, task)
    rows = [row for _, row in sorted(found, key=itemgetter(0))]
    columns = _columns(spec)
    table = pa.table({column: _array([row[column] for row in rows]) for column in columns})
    return table.replace_schema_metadata(_position(progress))


def _position(progress: CheckpointProgress) -> dict[str, str]:
    """Return the micro-batch and the offsets that the content includes, as metadata of the table."""
    position = {"millstream.batch": str(progress.last_complete)}
    if "topics" in progress.processed:
        position["millstream.offsets"] = json.dumps(progress.processed["topics"])
    return position


def _url(checkpoint: str | Path) -> str:
    text = str(checkpoint)
    if ":/" in text:
        return text
    path = Path(text).resolve()
    if not path.is_dir():
        raise SettingsError(
            f"there is no checkpoint in {str(path)!r}; by default, an application has it in <state_dir>/<id>/checkpoint"
        )
    return path.as_uri()


def _columns(spec: StoreSpec) -> list[str]:
    times: list[str] = []
    if isinstance(spec, WindowSpec):
        times = ["start"]
    elif isinstance(spec, SessionSpec):
        times = ["start", "end"]
    return ["key", *times, "value", *(["timestamp"] if spec.timestamped else [])]


def _rows(spec: StoreSpec, task: StoredTask) -> Iterator[tuple[Any, dict[str, object]]]:
    """Yield the rows of a task, each with its sort key."""
    order = order_of(spec)
    stores = MemoryStores()
    stores.apply(task.content)
    for found, entry in open_store(spec, stores, memory=task.memory).all():
        row: dict[str, object] = {"key": found}
        if isinstance(spec, WindowSpec):
            row = {"key": found.key, "start": found.start}
        elif isinstance(spec, SessionSpec):
            row = {"key": found.key, "start": found.start, "end": found.end}
        if spec.timestamped:
            row.update(value=entry.value, timestamp=entry.timestamp)
        else:
            row.update(value=entry)
        yield order((found, entry)), row


def _spec(name: str, fingerprint: str, key: Serde[Any] | None, value: Serde[Any] | None) -> StoreSpec:
    kind, _, formats = _SUB_TOPOLOGY.sub("", fingerprint).partition(" ")
    key_name, _, value_name = formats.partition(" -> ")
    plain_kind = kind.removeprefix(_TIMESTAMPED)
    if plain_kind not in _SPECS:
        raise StoreError(
            f"store {name!r} has the kind {kind!r}, which cannot be read from a checkpoint; those that can: {', '.join(_SPECS)}"
        )
    found = _serde(name, "key", key_name, key), _serde(name, "value", value_name, value)
    return _SPECS[plain_kind](name, *found, timestamped=kind.startswith(_TIMESTAMPED))


def _serde(store: str, side: str, name: str, given: Serde[Any] | None) -> Serde[Any]:
    if given is None and name in _KNOWN:
        found: Serde[Any] = getattr(serdes, name)
        return found
    if given is None or given.name != name:
        raise StoreError(f"store {store!r} has {side}s of the serde {name!r}; give it as {side}=")
    return given


def _array(values: list[Any]) -> pa.Array:
    import pyarrow as pa

    # Besides Arrow's errors, large integers raise OverflowError, and surrogates UnicodeEncodeError, a ValueError.
    try:
        return pa.array(values)
    except (pa.ArrowNotImplementedError, TypeError, ValueError, OverflowError):
        pass
    try:
        return pa.array([as_json_value(value) for value in values])
    except (pa.ArrowNotImplementedError, TypeError, ValueError, OverflowError):
        return pa.array([None if value is None else _escaped_text(value) for value in values])


def _escaped_text(value: Any) -> str:
    return str(value).encode(errors="backslashreplace").decode()
