"""Each store has an engine, and a missing engine is reported before the application starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import millstream as ms
from millstream.core.model.errors import SettingsError
from millstream.drivers import lmdb, memory
from millstream.edge.planning.store_engines import copies_spec
from millstream.edge.settings.settings import Settings
from millstream.edge.settings.settings_loading import settings_from


def topology() -> ms.Topology:
    builder = ms.StreamsBuilder()
    words = builder.stream("words").group_by_key()
    words.count(store="plain")
    words.count(store=ms.stores.options("chosen", engine="memory"))
    return builder.build()


def settings(**given: object) -> Settings:
    return settings_from({"bootstrap_servers": "unused", **given})


def test_a_store_uses_its_own_engine_or_that_of_the_setting(tmp_path: Path) -> None:
    spec = copies_spec(topology().plan("app"), settings(), tmp_path)
    assert spec.engines == {"plain": "lmdb", "chosen": "memory"}
    assert spec.openers == {"lmdb": lmdb.open_local_copy, "memory": memory.open_local_copy}
    assert spec.memory_per_engine == spec.memory_bytes // 2
    spec = copies_spec(topology().plan("app"), settings(store_engine="memory"), tmp_path)
    assert set(spec.engines.values()) == {"memory"}
    assert spec.memory_per_engine == spec.memory_bytes


def test_a_missing_engine_is_reported_with_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("millstream.drivers.rocksdb")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(
        SettingsError,
        match=r"the engine 'rocksdb' of 'plain' needs the package 'rocksdict'.*pip install 'millstream\[rocksdb\]'",
    ):
        ms.Application("app", topology(), bootstrap_servers="unused", store_engine="rocksdb")


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(SettingsError, match="'store_engine' cannot be 'leveldb'"):
        settings(store_engine="leveldb")


def test_the_engine_setting_also_applies_to_global_stores() -> None:
    builder = ms.StreamsBuilder()
    builder.global_table("products", store="goods")
    builder.stream("orders").to("out")
    application = ms.Application("app", builder.build(), bootstrap_servers="unused", store_engine="memory")
    assert application._program.copies.engines == {"goods": "memory"}
