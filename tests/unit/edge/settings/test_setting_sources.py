"""Sources of settings: each entry of a dictionary comes whole from the first source that sets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import millstream as ms
from millstream.core.model.errors import SettingsError
from millstream.edge.cli.doctor.doctor_report import inquiry_for
from millstream.edge.settings.setting_sources import servers_are_named
from millstream.edge.settings.settings_loading import settings_from

from .settings_files import file

SERVERS = {"bootstrap_servers": "b:9092"}


def test_a_secret_reference_replaces_that_of_a_weaker_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file(tmp_path, monkeypatch, '[kafka]\n"sasl.password" = {file = "/run/x"}\n')
    assert settings_from(SERVERS).kafka == {"sasl.password": ms.secret.file("/run/x")}
    monkeypatch.setenv("MILLSTREAM_KAFKA__SASL_PASSWORD__ENV", "PW")
    assert settings_from(SERVERS).kafka == {"sasl.password": ms.secret.env("PW")}
    given = {**SERVERS, "kafka": {"sasl.password": {"env": "OTHER"}}}
    assert settings_from(given).kafka == {"sasl.password": ms.secret.env("OTHER")}


@pytest.mark.parametrize("first", ["", "__ENV"])
def test_two_variables_for_the_same_entry_are_refused(monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    monkeypatch.setenv("MILLSTREAM_PRODUCER__SASL_PASSWORD__FILE", "/run/secrets/producer")
    monkeypatch.setenv("MILLSTREAM_KAFKA__SASL_PASSWORD__FILE", "/run/secrets/kafka")
    settings_from({"bootstrap_servers": "localhost:9092"})
    monkeypatch.setenv(f"MILLSTREAM_KAFKA__SASL_PASSWORD{first}", "changeit")
    with pytest.raises(
        SettingsError, match=r"_PASSWORD\w*' and 'MILLSTREAM_KAFKA\w+' set the same entry"
    ) as raised:
        settings_from({"bootstrap_servers": "localhost:9092"})
    assert "changeit" not in str(raised.value)


def test_both_names_of_a_setting_set_the_same_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file(tmp_path, monkeypatch, '[kafka]\n"sasl.mechanism" = "PLAIN"\n"sasl.password" = "from file"\n')
    monkeypatch.setenv("MILLSTREAM_KAFKA", '{"sasl.mechanisms": "SCRAM-SHA-512"}')
    assert settings_from(SERVERS).kafka["sasl.mechanisms"] == "SCRAM-SHA-512"
    jaas = 'x required username="u" password="p";'
    settings = settings_from({**SERVERS, "kafka": {"sasl.mechanism": "GSSAPI", "sasl.jaas.config": jaas}})
    assert settings.kafka == {"sasl.mechanisms": "GSSAPI", "sasl.username": "u", "sasl.password": "p"}


JAAS = 'x required username="ada" password="hunter2";'


@pytest.mark.parametrize(
    ("both", "known"),
    [
        ({"sasl.mechanism": "PLAIN", "sasl.mechanisms": "SCRAM-SHA-256"}, "sasl.mechanisms"),
        ({"sasl.username": "bob", "sasl.jaas.config": JAAS}, "sasl.username"),
    ],
)
def test_two_names_of_a_setting_with_different_values_are_refused(
    both: dict[str, str], known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = pytest.raises(
        SettingsError, match=rf"'{known}' has two values, because 'sasl\.\S+' sets it, too"
    )
    for given in (both, dict(reversed(both.items()))):
        with refused:
            settings_from({**SERVERS, "kafka": given})
    for name, value in both.items():
        monkeypatch.setenv(f"MILLSTREAM_KAFKA__{name.replace('.', '_').upper()}", value)
    with refused:
        settings_from(SERVERS)


def test_two_names_of_a_setting_may_have_the_same_value() -> None:
    kafka = {"sasl.mechanism": "PLAIN", "sasl.mechanisms": "PLAIN"}
    assert settings_from({**SERVERS, "kafka": kafka}).kafka == {"sasl.mechanisms": "PLAIN"}


def test_an_entry_of_app_config_is_replaced_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_APP_CONFIG", '{"limits": {"a": 1, "b": 2}, "shop": "x"}')
    settings = settings_from({**SERVERS, "app_config": {"limits": {"a": 5}}})
    assert settings.app_config == {"limits": {"a": 5}, "shop": "x"}


def test_the_password_in_a_secret_login_configuration_stays_hidden() -> None:
    jaas = SecretStr('x required username="u" password="hunter2";')
    settings = settings_from({**SERVERS, "kafka": {"sasl.jaas.config": jaas}})
    assert settings.kafka == {"sasl.username": "u", "sasl.password": SecretStr("hunter2")}
    assert "hunter2" not in str(settings.kafka)
    assert settings.client("admin", "app")["sasl.password"] == "hunter2"


def test_a_login_configuration_must_be_text() -> None:
    with pytest.raises(SettingsError, match=r"'sasl.jaas.config' is text, not int"):
        settings_from({**SERVERS, "kafka": {"sasl.jaas.config": 5}})


def test_an_unquoted_name_in_the_file_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file(tmp_path, monkeypatch, '[kafka]\nssl.ca.location = "/ca"\n')
    with pytest.raises(SettingsError, match=r'In TOML, quote the name: "ssl\.ca\.location" = \.\.\.'):
        settings_from(SERVERS)


def test_a_tilde_is_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_STATE_DIR", "~/streams")
    assert settings_from(SERVERS).state_dir == Path.home() / "streams"
    with pytest.raises(SettingsError, match=r"'state_dir' cannot be '~nobody-here/x': .*home"):
        settings_from({**SERVERS, "state_dir": "~nobody-here/x"})


@pytest.mark.parametrize(
    ("written", "servers"), [('["a:1", "b:2"]', "a:1,b:2"), ("[::1]:9092", "[::1]:9092"), ("a:1", "a:1")]
)
def test_servers_in_a_variable_can_be_text_or_a_list(
    written: str, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP_SERVERS", written)
    assert settings_from({}).bootstrap_servers == servers


@pytest.mark.parametrize(
    ("text", "named"),
    [('bootstrap_servers = "f:1"\n', True), ("max_batch_records = 5\n", False), ("[", True)],
)
def test_servers_can_be_named_in_a_file_or_in_a_variable(
    text: str, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not servers_are_named()
    file(tmp_path, monkeypatch, text)
    assert servers_are_named() == named
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP_SERVERS", "e:1")
    assert servers_are_named()


def test_the_doctor_reports_an_empty_variable_for_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP_SERVERS", " ")
    _, finding = inquiry_for(None, ())
    assert (finding.ok, finding.detail[:49]) == (False, "the setting 'bootstrap_servers' cannot be ' ': In")


class FakeBroker:
    """A broker that only counts its starts."""

    bootstrap_servers = "embedded:1"
    started = 0

    def __enter__(self) -> FakeBroker:
        FakeBroker.started += 1
        return self

    def __exit__(self, *exc: object) -> None: ...


def test_a_lab_starts_a_broker_if_the_settings_file_names_no_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.testing.kafka.EmbeddedKafka", FakeBroker)
    file(tmp_path, monkeypatch, "max_batch_records = 5\n")
    lab: Any = ms.Lab("shop")
    assert lab._settings_with_broker()["bootstrap_servers"] == "embedded:1"
    lab.close()
    file(tmp_path, monkeypatch, 'bootstrap_servers = "f:1"\n')
    assert "bootstrap_servers" not in ms.Lab("shop")._settings_with_broker()
    assert FakeBroker.started == 1
