"""Store engines: the library that keeps the local copy of each store.

A store's ``engine=...`` takes precedence over the setting ``store_engine``. If an engine is not installed, the application cannot be
created, so the error does not first appear in a worker.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from millstream.core.model.errors import SettingsError
from millstream.core.ports import OpenLocalCopy
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.executor.copies import CopiesSpec
from millstream.edge.settings.settings import Settings


def copies_spec(plan: Plan, settings: Settings, directory: Path) -> CopiesSpec:
    """Return where and how the local copies of an application are kept.

    Raises:
        SettingsError: If an engine is not installed.
    """
    engines: dict[str, str] = {
        name: spec.engine or settings.store_engine
        for sub in (*plan.subtopologies, *plan.global_parts)
        for name, spec in sub.stores.items()
    }
    openers = {engine: _opener(engine, engines) for engine in sorted(set(engines.values()))}
    return CopiesSpec(str(directory), openers, engines, settings.worker_memory_bytes)


def _opener(engine: str, engines: dict[str, str]) -> OpenLocalCopy:
    try:  # an engine that needs a separate package is an extra of the same name
        opener: OpenLocalCopy = import_module(f"millstream.drivers.{engine}").open_local_copy
    except ModuleNotFoundError as error:
        stores = ", ".join(repr(store) for store, used in engines.items() if used == engine)
        raise SettingsError(
            f"the engine {engine!r} of {stores} needs the package {error.name!r}, which is not installed here: "
            f"pip install 'millstream[{engine}]', on every host of the application"
        ) from None
    return opener
