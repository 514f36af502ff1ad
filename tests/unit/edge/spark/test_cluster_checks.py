"""An application sends no unprotected secrets to a cluster, and refuses a checkpoint on a disk that other hosts cannot see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import millstream as ms
from millstream.core.model.errors import SettingsError, SparkRuntimeError, StoreError
from millstream.edge.settings.settings import Settings
from millstream.edge.settings.settings_loading import settings_from
from millstream.edge.spark.cluster_checks import (
    refuse_bare_secrets,
    refuse_local_checkpoint,
    refuse_query_key,
)

CLUSTERS = ["spark://host:7077", "spark://127.0.0.1:7077", "yarn", "k8s://https://host:6443"]
REMOTE = [master for master in CLUSTERS if "127.0.0.1" not in master]
LOCAL = ["local", "local[*]", "local[2,4]", "local-cluster[2,1,1024]"]


def settings(**given: Any) -> Settings:
    return settings_from({"bootstrap_servers": "b:9092", **given})


@pytest.mark.parametrize("master", CLUSTERS)
@pytest.mark.parametrize(
    "given",
    [
        {"kafka": {"sasl.password": "x"}},
        {"consumer": {"ssl.key.password": SecretStr("x")}},
        {"producer": {"ssl.key.pem": "x"}},
        {"kafka": {"sasl.jaas.config": 'a required username="u" password="x";'}},
        {"kafka": {"sasl.oauthbearer.assertion.private.key.passphrase": "x"}},
        {"kafka": {"sasl.password": "x"}, "producer": {"sasl.password": ms.secret.env("P")}},
        {"consumer": {"sasl.password": "x"}, "producer": {"sasl.password": ms.secret.env("P")}},
    ],
)
def test_a_secret_is_not_sent_over_a_cluster_without_authentication(
    master: str, given: dict[str, Any]
) -> None:
    with pytest.raises(
        SettingsError, match=r"ms\.secret\.file.*spark\.authenticate.*on_unprotected_secrets='send'"
    ) as caught:
        refuse_bare_secrets(settings(**given), master, protected=False)
    assert master in str(caught.value)
    refuse_bare_secrets(settings(**given), master, protected=True)
    refuse_bare_secrets(settings(**given, on_unprotected_secrets="send"), master, protected=False)


@pytest.mark.parametrize("master", CLUSTERS)
def test_settings_without_secrets_may_be_sent_to_any_cluster(master: str) -> None:
    harmless = {"security.protocol": "SSL", "ssl.key.location": "/k", "sasl.password": ms.secret.env("P")}
    refuse_bare_secrets(settings(kafka=harmless), master, protected=False)


@pytest.mark.parametrize("master", CLUSTERS)
def test_the_key_of_queries_is_not_sent_over_a_cluster_without_authentication(master: str) -> None:
    with pytest.raises(
        StoreError, match=r"on another host.*spark\.authenticate.*on_unprotected_secrets='send'"
    ):
        refuse_query_key(settings(), master, protected=False)
    refuse_query_key(settings(), master, protected=True)
    refuse_query_key(settings(on_unprotected_secrets="send"), master, protected=False)


@pytest.mark.parametrize("master", LOCAL)
def test_on_one_host_nothing_is_refused(master: str) -> None:
    refuse_bare_secrets(settings(kafka={"sasl.password": "x"}), master, protected=False)
    refuse_query_key(settings(), master, protected=False)
    refuse_local_checkpoint("file:///state/checkpoint", master)


@pytest.mark.parametrize("master", REMOTE)
def test_a_local_checkpoint_is_refused_if_other_hosts_would_write_it(master: str) -> None:
    with pytest.raises(
        SettingsError, match=r"file:///state/checkpoint is on a local disk.*checkpoint_is_shared=True"
    ):
        refuse_local_checkpoint("file:///state/checkpoint", master)


def test_a_cluster_on_the_loopback_interface_may_have_a_local_checkpoint() -> None:
    refuse_local_checkpoint("file:///state/checkpoint", "spark://127.0.0.1:7077")
    refuse_local_checkpoint("file:///state/checkpoint", "spark://localhost:7077")


def test_an_application_refuses_spark_connect_before_it_asks_the_broker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    builder = ms.StreamsBuilder()
    builder.stream("in").to("out")
    app = ms.Application("app", builder.build(), bootstrap_servers="127.0.0.1:1", state_dir=tmp_path)
    with pytest.raises(SparkRuntimeError, match=r"ms\.spark\.transform, which works there"):
        app.start()
