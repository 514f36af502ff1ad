"""References to secrets: only the reference is sent; a client resolves it in its own process."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark import cloudpickle

import millstream as ms
from millstream.core.model.errors import SettingsError
from millstream.drivers.kafka.clients import create_client
from millstream.drivers.kafka.secret_references import Secret
from millstream.edge.broker.kafka_clients import Clients
from millstream.edge.settings.settings import Settings
from millstream.edge.settings.settings_loading import settings_from

HIDDEN = "hunter2-hunter2"


@pytest.fixture(params=["env", "file", "fetched", "written"])
def reference(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """A reference of each kind, to an existing secret."""
    monkeypatch.setenv("SHOP_PASSWORD", HIDDEN)
    (tmp_path / "password").write_text(f"{HIDDEN}\n")
    path = str(tmp_path / "password")

    def from_the_vault() -> str:
        return Path(path).read_text().strip()

    kinds: dict[str, object] = {
        "env": ms.secret.env("SHOP_PASSWORD"),
        "file": ms.secret.file(tmp_path / "password"),
        "fetched": ms.secret.fetched(from_the_vault),
        "written": {"env": "SHOP_PASSWORD"},  # as in a TOML file, or in MILLSTREAM_KAFKA
    }
    return kinds[request.param]


@pytest.fixture
def settings(reference: object) -> Settings:
    return settings_from(
        {
            "bootstrap_servers": "b:9092",
            "processing_guarantee": "exactly_once",
            "dead_letter_topic": "dead",
            "kafka": {"sasl.password": reference},
            "producer": {"ssl.key.password": reference},
        }
    )


def test_objects_that_are_sent_to_workers_do_not_contain_the_secret(settings: Settings) -> None:
    clients = Clients(settings, "shop")
    builder = ms.StreamsBuilder()
    builder.stream("orders", fan_out=True).to("out", fan_out=True)
    plan = builder.build().plan("shop")
    sent_objects = [
        clients.broker(),
        clients.fetcher(),
        clients.publisher(),
        *clients.senders(plan),
        clients.transactions(),
        clients.marks(),
        clients.epochs(plan),
        settings.client("producer", "shop"),
    ]
    for value in sent_objects:
        assert HIDDEN.encode() not in cloudpickle.dumps(value), value
    assert HIDDEN not in repr(settings)
    assert settings.secrets_in_clients == ()


def test_a_client_resolves_the_secret_in_the_process_that_creates_it(settings: Settings) -> None:
    configuration = pickle.loads(cloudpickle.dumps(settings.client("producer", "shop")))
    client = create_client(dict, configuration)
    assert (client["sasl.password"], client["ssl.key.password"]) == (HIDDEN, HIDDEN)


def test_a_pickled_reference_has_the_same_text(reference: object) -> None:
    """A client is found by the text of its settings."""
    if isinstance(reference, Secret):
        assert str(pickle.loads(cloudpickle.dumps(reference))) == str(reference)


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        (
            ms.secret.env("SHOP_NOWHERE"),
            r"ms.secret.env\('SHOP_NOWHERE'\) is not set.*executors on every host",
        ),
        (
            ms.secret.file("/nowhere/at/all"),
            r"ms.secret.file\('/nowhere/at/all'\) cannot be read.*every host",
        ),
        (
            ms.secret.fetched(cast(Any, lambda: 1 / 0)),
            r"ms.secret.fetched\(.*lambda.*\) raised ZeroDivisionError",
        ),
        (ms.secret.fetched(cast(Any, lambda: 7)), r"returned int, not str"),
    ],
)
def test_a_secret_that_cannot_be_resolved_is_reported_with_its_location(secret: Secret, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        create_client(dict, {"sasl.password": secret})


@pytest.mark.parametrize("written", [{"env": "A", "file": "b"}, {"vault": "x"}, {"env": 3}, {}])
def test_an_invalid_reference_is_refused(written: object) -> None:
    with pytest.raises(
        SettingsError, match=re.escape("'sasl.password' is text, or names a secret: {'env': 'NAME'}")
    ):
        settings_from({"bootstrap_servers": "b:9092", "kafka": {"sasl.password": written}})


def test_a_jaas_text_cannot_be_a_reference() -> None:
    with pytest.raises(SettingsError, match=r"use 'sasl.username' and 'sasl.password'"):
        settings_from({"bootstrap_servers": "b:9092", "kafka": {"sasl.jaas.config": ms.secret.env("X")}})
