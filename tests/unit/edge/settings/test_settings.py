"""Settings: names, values, sources, and secrets that stay secret."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import Secret, SecretStr
from pyspark import cloudpickle

import millstream as ms
from millstream.core.model.errors import SettingsError
from millstream.drivers.kafka import clients
from millstream.edge.settings.client_settings import RULES, Rule, librdkafka_settings
from millstream.edge.settings.settings import Settings
from millstream.edge.settings.settings_loading import settings_from

from .settings_files import file

SERVERS = {"bootstrap_servers": "b:9092"}
SECRET = "hunter2"


class TestNames:
    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("bootstrap_server", "did you mean 'bootstrap_servers'?"),
            ("bootstrap.servers", "did you mean 'bootstrap_servers'?"),
            ("auto.offset.reset", "did you mean 'auto_offset_reset'?"),
            ("max_batch_record", "did you mean 'max_batch_records'?"),
            ("wholly_unlike", "there are: app_config, auto_offset_reset, bootstrap_servers, "),
        ],
    )
    def test_that_do_not_exist_are_reported_with_a_hint(self, name: str, hint: str) -> None:
        with pytest.raises(SettingsError) as caught:
            settings_from({**SERVERS, name: "x"})
        assert caught.value.message.startswith(f"there is no setting {name!r}; {hint}")
        assert caught.value.message.endswith("go into kafka={...}, consumer={...} or producer={...}")

    def test_the_list_of_names_is_a_separate_sentence(self) -> None:
        with pytest.raises(SettingsError, match=r"worker_memory_bytes\. Settings of Kafka's clients"):
            settings_from({**SERVERS, "wholly_unlike": "x"})

    def test_the_bootstrap_servers_are_required(self) -> None:
        with pytest.raises(
            SettingsError, match=r"^the setting 'bootstrap_servers' is missing \(host:port of brokers"
        ):
            settings_from({})


class TestValues:
    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("max_batch_records", 0, r"cannot be 0: Input should be greater than or equal to 1"),
            ("max_batch_records", "many", r"cannot be 'many': Input should be a valid integer"),
            (
                "auto_offset_reset",
                "first",
                r"cannot be 'first': Input should be 'earliest', 'latest' or 'none'",
            ),
            (
                "on_process_error",
                "ignore",
                r"cannot be 'ignore': Input should be 'fail', 'skip' or 'dead_letter'",
            ),
            ("shuffle_partitions", 5000, r"cannot be 5000: Input should be less than or equal to 1024"),
            (
                "processing_guarantee",
                "at_most_once",
                r"cannot be 'at_most_once': Input should be 'at_least_once' or 'exactly_once'",
            ),
            (
                "max_records_per_second",
                {"in": 0},
                r"^the setting 'max_records_per_second\.in' cannot be 0: Input should be greater than 0",
            ),
            ("spark", {"a": 1}, r"^the setting 'spark\.a' cannot be \(not shown\): "),
            ("bootstrap_servers", " ", r"cannot be ' ': Input should not be empty"),
            ("state_dir", "", r"cannot be '': Input should not be empty"),
            (
                "checkpoint_location",
                "",
                r"^the setting 'checkpoint_location' cannot be '': Input should not be empty",
            ),
            ("http_host", "", r"cannot be '': Input should not be empty"),
            ("dead_letter_topic", "", r"cannot be '': Input should be 1 to 249 letters"),
            ("dead_letter_topic", "a b", r"cannot be 'a b': Input should be 1 to 249 letters"),
            ("metrics_port", True, r"cannot be True: Input should be a port, 0 for any free one, or None"),
            ("page_port", False, r"cannot be False: Input should be a port, 0 for any free one, or None"),
            ("master", "nonsense", r"cannot be 'nonsense': Input should be local\[\*\], spark://host:7077"),
            ("master", "", r"cannot be '': Input should be local\[\*\], spark://host:7077"),
            ("replication_factor", 0, r"cannot be 0: Input should be at least 1, or -1 for the broker's"),
            ("replication_factor", -2, r"cannot be -2: Input should be greater than or equal to -1"),
        ],
    )
    def test_that_are_impossible_are_reported(self, name: str, value: Any, message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            settings_from({**SERVERS, name: value})

    def test_several_impossible_values_are_reported_together(self) -> None:
        with pytest.raises(
            SettingsError,
            match=r"'max_batch_records' cannot be 0: .*; the setting 'task_timeout_ms' cannot be 1: ",
        ):
            settings_from({**SERVERS, "max_batch_records": 0, "task_timeout_ms": 1})

    def test_a_dead_letter_policy_needs_a_topic(self) -> None:
        with pytest.raises(
            SettingsError, match=r"on_process_error='dead_letter' needs dead_letter_topic='\.\.\.'"
        ):
            settings_from({**SERVERS, "on_process_error": "dead_letter"})
        settings = settings_from({**SERVERS, "on_process_error": "dead_letter", "dead_letter_topic": "dead"})
        assert (settings.policies.process, settings.policies.dead_letter_topic) == ("dead_letter", "dead")

    def test_a_dead_letter_after_retries_needs_a_topic(self) -> None:
        with pytest.raises(
            SettingsError,
            match=r"on_process_error=Retrying\(attempts=2, then='dead_letter', .*\) needs dead_letter_topic",
        ):
            settings_from({**SERVERS, "on_process_error": ms.Retrying(2, then="dead_letter")})

    def test_rates_can_only_be_set_for_topics_that_are_read(self) -> None:
        builder = ms.StreamsBuilder()
        builder.stream(["orders", "prices"]).to("out")
        topology, given = builder.build(), {**SERVERS, "max_records_per_second": {"orders": 5, "out": 5}}
        with pytest.raises(SettingsError, match=r"names 'out', which .* it reads 'orders', 'prices'"):
            ms.Application("app", topology, **given)
        app = ms.Application("app", topology, **{**given, "max_records_per_second": {"orders": 5}})
        assert app.settings.max_records_per_second == {"orders": 5}

    @pytest.mark.parametrize(("per_task", "total"), [(2, 1), (8, 7)])
    def test_fewer_threads_in_total_than_per_task_are_refused(self, per_task: int, total: int) -> None:
        given = {**SERVERS, "num_threads_per_task": per_task, "num_stream_threads": total}
        with pytest.raises(
            SettingsError,
            match=rf"^num_stream_threads={total} is less than num_threads_per_task={per_task}: not even one task .* or more",
        ):
            settings_from(given)
        enough = settings_from({**given, "num_stream_threads": per_task})
        assert (enough.num_threads_per_task, enough.num_stream_threads) == (per_task, per_task)

    @pytest.mark.parametrize("name", ["num_threads_per_task", "num_stream_threads"])
    def test_there_is_at_least_one_thread(self, name: str) -> None:
        with pytest.raises(SettingsError, match=rf"'{name}' cannot be 0: Input should be greater than"):
            settings_from({**SERVERS, name: 0})

    def test_an_empty_xdg_state_home_is_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", "")
        assert settings_from(SERVERS).state_dir == Path.home() / ".local/state/millstream"

    def test_cannot_be_changed_later(self) -> None:
        with pytest.raises(ValueError, match="frozen"):
            settings_from(SERVERS).max_batch_records = 5  # type: ignore[misc]

    def test_settings_have_defaults(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
        settings = settings_from(SERVERS)
        assert settings.state_dir == Path("/somewhere/millstream")
        assert (settings.auto_offset_reset, settings.read_committed, settings.policies.process) == (
            "earliest",
            False,
            "fail",
        )
        assert settings_from({**SERVERS, "isolation_level": "read_committed"}).read_committed


class TestSources:
    def test_settings_are_read_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MILLSTREAM_BOOTSTRAP_SERVERS", "e:1")
        monkeypatch.setenv("MILLSTREAM_MAX_BATCH_RECORDS", "7")
        monkeypatch.setenv("MILLSTREAM_KAFKA", '{"security.protocol": "SSL"}')
        settings = settings_from({})
        assert (settings.bootstrap_servers, settings.max_batch_records) == ("e:1", 7)
        assert settings.kafka == {"security.protocol": "SSL"}

    def test_a_variable_can_set_a_single_entry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MILLSTREAM_KAFKA", '{"security.protocol": "SSL", "sasl.username": "somebody"}')
        monkeypatch.setenv("MILLSTREAM_KAFKA__SASL_USERNAME", "1e5")
        monkeypatch.setenv("MILLSTREAM_KAFKA__SASL_PASSWORD__FILE", "/run/secrets/kafka")
        monkeypatch.setenv("MILLSTREAM_CONSUMER__FETCH_MIN_BYTES", "5")
        settings = settings_from({**SERVERS, "kafka": {"client.id": "c"}})
        assert settings.kafka == {
            "security.protocol": "SSL",
            "sasl.username": "1e5",
            "sasl.password": ms.secret.file("/run/secrets/kafka"),
            "client.id": "c",
        }
        assert settings.consumer == {"fetch.min.bytes": "5"}

    def test_spark_settings_keep_their_capitals(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MILLSTREAM_SPARK", '{"spark.executor.memoryOverhead": "1g"}')
        assert settings_from(SERVERS).spark == {"spark.executor.memoryOverhead": "1g"}

    def test_a_variable_for_a_reserved_setting_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MILLSTREAM_KAFKA__GROUP_ID", "other")
        with pytest.raises(SettingsError, match=r"'group.id' cannot be set here"):
            settings_from(SERVERS)
        monkeypatch.delenv("MILLSTREAM_KAFKA__GROUP_ID")
        monkeypatch.setenv("MILLSTREAM_KAFKA__GROUP_ID__VAULT", "x")
        with pytest.raises(SettingsError, match=r"names a secret: \{'env': 'NAME'\}|cannot be set here"):
            settings_from(SERVERS)

    @pytest.mark.parametrize(
        ("variable", "why"),
        [
            ("MILLSTREAM_OUTPT", "'MILLSTREAM_OUTPT'; did you mean 'MILLSTREAM_OUTPUT'?"),
            ("MILLSTREAM_CACHE_DIRS", "did you mean 'MILLSTREAM_CACHE_DIR'?"),
            ("MILLSTREAM_KAFAK__ACKS", "did you mean 'MILLSTREAM_KAFKA'?"),
            ("MILLSTREAM_QQQ", "unset it or rename it"),
            ("MILLSTREAM_METRCS_PORT", "did you mean 'MILLSTREAM_METRICS_PORT'?"),
            ("MILLSTREAM_KAFKA__", "'MILLSTREAM_KAFKA__' sets no entry"),
            (
                "MILLSTREAM_ON_OPERATOR_ERROR__NIX",
                "write the other settings as JSON, as MILLSTREAM_ON_OPERATOR_ERROR={...}",
            ),
            (
                "MILLSTREAM_SPARK__SPARK_EXECUTOR_MEMORYOVERHEAD",
                """are case-sensitive: write them as JSON, as MILLSTREAM_SPARK='{"spark.executor.memoryOverhead": "1g"}'""",
            ),
        ],
    )
    def test_a_variable_that_sets_nothing_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, variable: str, why: str
    ) -> None:
        monkeypatch.setenv(variable, "skip")
        with pytest.raises(SettingsError, match=re.escape(why)):
            settings_from(SERVERS)

    def test_variables_that_are_not_settings_are_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in (
            *("CACHE_DIR", "CLASS_ARCHIVES", "EXECUTOR_PID", "IVY_SETTINGS", "KAFKA_JARS", "TEST_PROOFS"),
            *("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT_80_TCP", "PORT_80_TCP_ADDR"),
            "ORDERS_SERVICE_HOST",
        ):
            monkeypatch.setenv(f"MILLSTREAM_{name}", "off")
        monkeypatch.setenv("MILLSTREAM_PORT", "tcp://10.0.0.1:80")
        assert settings_from(SERVERS).bootstrap_servers

    def test_a_service_variable_of_kubernetes_is_not_taken_as_a_port(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(
            "MILLSTREAM_METRICS_PORT", "tcp://10.0.0.1:9464"
        )  # Kubernetes sets it for a service millstream-metrics
        monkeypatch.setenv("MILLSTREAM_PAGE_PORT", "9465")
        settings = settings_from(SERVERS)
        assert (settings.metrics_port, settings.page_port) == (None, 9465)
        assert settings_from({**SERVERS, "metrics_port": 1}).metrics_port == 1
        with pytest.raises(SettingsError, match="'metrics_port' cannot be 'tcp:"):
            settings_from({**SERVERS, "metrics_port": "tcp://10.0.0.1:9464"})

    def test_settings_are_read_from_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file(tmp_path, monkeypatch, 'bootstrap_servers = "f:1"\n[consumer]\n"fetch.min.bytes" = 5\n')
        settings = settings_from({})
        assert (settings.bootstrap_servers, settings.consumer) == ("f:1", {"fetch.min.bytes": 5})

    def test_keywords_override_the_environment_and_the_environment_overrides_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file(
            tmp_path,
            monkeypatch,
            'bootstrap_servers = "f:1"\nmax_batch_records = 1\ntrigger_interval_ms = 1\n',
        )
        monkeypatch.setenv("MILLSTREAM_MAX_BATCH_RECORDS", "2")
        monkeypatch.setenv("MILLSTREAM_TRIGGER_INTERVAL_MS", "2")
        settings = settings_from({"trigger_interval_ms": 3})
        assert (settings.bootstrap_servers, settings.max_batch_records, settings.trigger_interval_ms) == (
            "f:1",
            2,
            3,
        )

    def test_a_directory_is_refused_as_a_settings_file(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("MILLSTREAM_CONFIG", str(tmp_path))
        with pytest.raises(SettingsError, match=r"the settings file .* cannot be read: Is a directory"):
            settings_from(SERVERS)

    def test_a_file_that_does_not_exist_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MILLSTREAM_CONFIG", "/no/such/file.toml")
        with pytest.raises(
            SettingsError,
            match=r"'/no/such/file\.toml' does not exist \(from the environment variable MILLSTREAM_CONFIG\)",
        ):
            settings_from(SERVERS)

    def test_a_file_that_is_not_toml_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file(tmp_path, monkeypatch, "bootstrap_servers = [")
        with pytest.raises(SettingsError, match=r"millstream\.toml"):
            settings_from({})

    def test_an_unknown_name_in_the_file_is_reported_with_a_hint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file(tmp_path, monkeypatch, 'bootstrap_servrs = "f:1"')
        with pytest.raises(
            SettingsError, match=r"there is no setting 'bootstrap_servrs'; did you mean 'bootstrap_servers'\?"
        ):
            settings_from(SERVERS)

    def test_an_environment_variable_that_is_not_json_is_reported(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("MILLSTREAM_KAFKA", "MILLSTREAM_MAX_RECORDS_PER_SECOND"):
            monkeypatch.setenv(name, "{not json")
            why = f'the environment variable {name!r} is not JSON; write it as {name}=\'{{"name": "value"}}\''
            with pytest.raises(SettingsError, match=re.escape(why)):
                settings_from(SERVERS)
            monkeypatch.delenv(name)

    def test_an_impossible_value_in_the_environment_is_reported(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MILLSTREAM_MAX_BATCH_RECORDS", "many")
        with pytest.raises(SettingsError, match="the setting 'max_batch_records' cannot be 'many'"):
            settings_from(SERVERS)


class TestClients:
    def test_get_the_common_settings_and_their_own(self) -> None:
        settings = settings_from(
            {
                **SERVERS,
                "kafka": {"a": 1, "b": 1},
                "consumer": {"b": 2},
                "producer": {"c": 3, "client.id": "mine"},
            }
        )
        common = {"bootstrap.servers": "b:9092", "a": 1}
        assert settings.client("admin", "app") == {**common, "client.id": "app-admin", "b": 1}
        assert settings.client("consumer", "app") == {**common, "client.id": "app-consumer", "b": 2}
        assert settings.client("producer", "app") == {**common, "client.id": "mine", "b": 1, "c": 3}

    def test_accept_the_sasl_settings_of_java_clients(self) -> None:
        jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="{SECRET}";'
        settings = settings_from(
            {
                **SERVERS,
                "kafka": {
                    "security.protocol": "SASL_SSL",
                    "sasl.mechanism": "PLAIN",
                    "sasl.jaas.config": jaas,
                },
            }
        )
        assert settings.kafka == {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "me",
            "sasl.password": SECRET,
        }

    @pytest.mark.parametrize(
        ("written", "password"),
        [
            ("password='p w'", "p w"),
            ('password = "a=b;c"', "a=b;c"),
            ('password=""', ""),
            ('password="it\'s"', "it's"),
            ("password='say \"x\"'", 'say "x"'),
            ('password="a\\"b"', 'a"b'),
            ("password=plain", "plain"),
        ],
    )
    def test_read_passwords_as_java_does(self, written: str, password: str) -> None:
        read = librdkafka_settings({"sasl.jaas.config": f'x.Module required username="me" {written};'})
        assert read == {"sasl.username": "me", "sasl.password": password}

    @pytest.mark.parametrize("options", ['clientId="me" clientSecret="{}"', 'password="{}"', "{}"])
    def test_refuse_login_configurations_without_user_name_and_password(self, options: str) -> None:
        jaas = f"x.Module required {options.format(SECRET)};"
        with pytest.raises(SettingsError, match=r"cannot be .*has no username and password; write") as caught:
            settings_from({**SERVERS, "kafka": {"sasl.jaas.config": jaas}})
        assert SECRET not in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "instead"),
        [
            ("ssl.truststore.location", r"use ssl\.ca\.location with a PEM file"),
            ("group.id", "use the application id, which is the group"),
            ("enable.auto.commit", "offsets are committed after their records are processed"),
            ("value.deserializer", r"use value=ms\.serdes\.\.\. at the source"),
        ],
    )
    def test_refuse_settings_that_only_java_has_and_name_the_replacement(
        self, name: str, instead: str
    ) -> None:
        with pytest.raises(SettingsError, match=rf"'{name}' cannot be set here: {instead}"):
            settings_from({**SERVERS, "consumer": {name: "x"}})


ALLOWED = [(rule, name, value) for rule in RULES for name in rule.names for value in rule.allowed or ()]


class TestClientSettingsThatAffectGuarantees:
    """Every rule of the table, under each of its names, in each group of settings."""

    @pytest.mark.parametrize("where", ["kafka", "consumer", "producer"])
    @pytest.mark.parametrize("name", [name for rule in RULES if rule.allowed == () for name in rule.names])
    def test_are_refused_with_their_replacement(self, name: str, where: str) -> None:
        with pytest.raises(SettingsError, match=rf"'{re.escape(name)}' cannot be set here: \w+"):
            settings_from({**SERVERS, where: {name: "x"}})

    @pytest.mark.parametrize("name", [name for rule in RULES if rule.allowed for name in rule.names])
    def test_are_refused_unless_the_value_is_harmless(self, name: str) -> None:
        with pytest.raises(SettingsError, match=rf"'{re.escape(name)}' can only be "):
            settings_from({**SERVERS, "kafka": {name: "something else"}})

    @pytest.mark.parametrize(("rule", "name", "value"), ALLOWED)
    def test_are_accepted_with_an_allowed_value(self, rule: Rule, name: str, value: str) -> None:
        assert settings_from({**SERVERS, "kafka": {name: value}}).kafka == {name: value}

    def test_can_be_written_as_python_values(self) -> None:
        given = {
            "enable.idempotence": True,
            "max.in.flight": 5,
            "acks": -1,
            "allow.auto.create.topics": False,
        }
        assert settings_from({**SERVERS, "producer": given}).producer == given
        for name, value in [
            ("enable.idempotence", False),
            ("max.in.flight", 6),
            ("acks", 1),
            ("partitioner", None),
        ]:
            with pytest.raises(SettingsError, match=f"'{name}' can only be "):
                settings_from({**SERVERS, "producer": {name: value}})

    def test_have_one_rule_each(self) -> None:
        names = [name for rule in RULES for name in rule.names]
        assert len(names) == len(set(names))

    def test_are_refused_in_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MILLSTREAM_CONSUMER", '{"isolation.level": "read_uncommitted"}')
        with pytest.raises(
            SettingsError, match=r"'isolation\.level' cannot be set here: use isolation_level"
        ):
            settings_from({**SERVERS, "processing_guarantee": "exactly_once"})

    def test_are_refused_in_the_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file(tmp_path, monkeypatch, '[kafka]\n"isolation.level" = "read_committed"\n')
        with pytest.raises(
            SettingsError, match=r"'isolation\.level' cannot be set here: use isolation_level"
        ):
            settings_from(SERVERS)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"producer": {"no.such.setting": 1}}, "no.such.setting"),
        ({"consumer": {"no.such.setting": 1}}, "no.such.setting"),
        ({"producer": {"retries": 0}}, "`retries` must be set >= 1"),
        ({"producer": {"linger.ms": "soon"}}, "queue.buffering.max.ms"),
    ],
)
def test_a_setting_that_librdkafka_rejects_is_reported_at_the_start(
    given: dict[str, Any], message: str, guarantee: str, tmp_path: Path
) -> None:
    builder = ms.StreamsBuilder()
    builder.stream("in").to("out")
    more = {"processing_guarantee": guarantee, "state_dir": tmp_path}
    app = ms.Application("app", builder.build(), **{**SERVERS, **more, **given})
    with pytest.raises(
        SettingsError, match=rf"rejects a setting: .*{re.escape(message)}.* Correct it in kafka="
    ):
        app.start()
    assert not list(tmp_path.iterdir())


SECRETS: list[dict[str, Any]] = [
    {"kafka": {"sasl.password": SECRET, "ssl.key.password": SECRET}},
    {"consumer": {"sasl.jaas.config": f'x required username="u" password="{SECRET}";'}},
    {"producer": {"sasl.oauthbearer.client.secret": SECRET, "ssl.key.pem": SECRET}},
    {"spark": {"spark.hadoop.fs.s3a.secret.key": SECRET, "spark.ssl.keyPassword": SECRET}},
]


class TestSecrets:
    @pytest.mark.parametrize("given", SECRETS, ids=lambda given: next(iter(given)))
    def test_are_not_shown(self, given: dict[str, Any]) -> None:
        settings = settings_from({**SERVERS, **given})
        assert SECRET in str(settings.model_dump())
        for text in (repr(settings), str(settings), repr([settings])):
            assert SECRET not in text

    @pytest.mark.parametrize("given", SECRETS, ids=lambda given: next(iter(given)))
    @pytest.mark.parametrize(
        "mistake",
        [
            {"max_batch_records": 0},
            {"unknown_setting": 1},
            {"on_process_error": "dead_letter"},
            {"bootstrap_servers": None},
        ],
        ids=lambda mistake: next(iter(mistake)),
    )
    def test_are_not_in_the_errors_of_other_settings(
        self, given: dict[str, Any], mistake: dict[str, Any]
    ) -> None:
        assert_hidden({**SERVERS, **given, **mistake})

    @pytest.mark.parametrize(
        "given",
        [
            {"kafka": f"sasl.password={SECRET}"},
            {"kafka": {"group.id": 1, "sasl.password": SECRET}},
            {"consumer": [f"sasl.password={SECRET}"]},
            {"spark": {"spark.my.password": [SECRET]}},
            {"spark": f"spark.my.password={SECRET}"},
        ],
    )
    def test_are_not_in_the_errors_of_their_own_settings(self, given: dict[str, Any]) -> None:
        assert_hidden({**SERVERS, **given})

    def test_are_not_in_errors_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MILLSTREAM_PRODUCER", f'{{"sasl.password": "{SECRET}", }}')
        assert_hidden(SERVERS)

    def test_are_not_in_errors_of_the_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file(
            tmp_path,
            monkeypatch,
            f'max_batch_records = 0\n[kafka]\n"sasl.password" = "{SECRET}"\n"group.id" = "x"\n',
        )
        assert_hidden(SERVERS)


def assert_hidden(given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_from(given)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_every_setting_is_described() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def _token(config: str) -> tuple[str, float]:
    return f"token for {config}", 9e12


class TestValuesOfOtherTypes:
    """Values of client settings that are neither text nor numbers: functions, secrets, lists, durations."""

    def test_an_unpickled_function_selects_the_same_client(self) -> None:
        clients._WARM.clear()
        given = {"oauth_cb": lambda config: (f"token for {config}", 9e12)}  # pickled by value
        settings = settings_from({**SERVERS, "kafka": given})
        pickled = cloudpickle.dumps(settings.client("consumer", "app"))
        first, second = (clients.warm(_FakeClient, cloudpickle.loads(pickled)) for _ in range(2))
        assert first is second
        assert first.settings["oauth_cb"]("x") == ("token for x", 9e12)
        clients.hang_up(cloudpickle.loads(pickled))
        assert not clients._WARM

    def test_each_settings_object_with_a_function_has_its_own_client(self) -> None:
        clients._WARM.clear()
        first, second = (settings_from({**SERVERS, "kafka": {"oauth_cb": _token}}) for _ in range(2))
        warm_clients = [
            clients.warm(_FakeClient, settings.client("consumer", "app"))
            for settings in (first, first, second)
        ]
        assert (warm_clients[0] is warm_clients[1], warm_clients[0] is warm_clients[2]) == (True, False)

    @pytest.mark.parametrize("secret", [SecretStr(SECRET), Secret[str](SECRET)])
    def test_a_secret_reaches_the_client_but_is_not_shown(self, secret: Any) -> None:
        settings = settings_from({**SERVERS, "kafka": {"sasl.username": secret}})
        assert settings.client("admin", "app")["sasl.username"] == SECRET
        for text in (repr(settings), str(settings.model_dump())):
            assert SECRET not in text

    def test_the_content_of_a_secret_is_checked(self) -> None:
        assert settings_from({**SERVERS, "producer": {"acks": SecretStr("all")}}).client("producer", "app")[
            "acks"
        ] == ("all")
        jaas = SecretStr(f'x required username="me" password="{SECRET}";')
        assert librdkafka_settings({"sasl.jaas.config": jaas})["sasl.password"] == SecretStr(SECRET)

    @pytest.mark.parametrize("servers", [["a:1", "b:2"], ("a:1", "b:2"), "a:1,b:2"])
    def test_servers_may_be_a_list(self, servers: Any) -> None:
        assert settings_from({"bootstrap_servers": servers}).bootstrap_servers == "a:1,b:2"

    def test_a_list_of_servers_must_contain_text(self) -> None:
        with pytest.raises(SettingsError, match=r"'bootstrap_servers' cannot be \[1\]: Input should be"):
            settings_from({"bootstrap_servers": [1]})

    @pytest.mark.parametrize("parallelism", ["auto", {"orders": "auto", "clicks": 32}])
    def test_automatic_parallelism_excludes_settings_of_shuffle_partitions(self, parallelism: Any) -> None:
        assert settings_from({**SERVERS, "parallelism": parallelism}).parallelism == parallelism
        for given in ({"shuffle_partitions": 4}, {"on_changed_shuffle_partitions": "keep"}):
            with pytest.raises(SettingsError, match="needs shuffle_partitions=None, on_changed"):
                settings_from({**SERVERS, "parallelism": parallelism, **given})

    @pytest.mark.parametrize(
        ("parallelism", "why"),
        [
            (
                0,
                "'parallelism' cannot be 0: Input should be greater than 0, or Input should be 'auto', or Input",
            ),
            ({"orders": "many"}, "'parallelism.orders' cannot be 'many': Input should be a valid integer"),
        ],
    )
    def test_an_error_shows_no_type_names_of_pydantic(self, parallelism: Any, why: str) -> None:
        with pytest.raises(SettingsError) as caught:
            settings_from({**SERVERS, "parallelism": parallelism})
        assert why in caught.value.message
        assert not re.search(r"constrained|literal|dict\[", caught.value.message)

    def test_parallelism_is_read_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for text, value in (("auto", "auto"), ("4", 4)):
            monkeypatch.setenv("MILLSTREAM_PARALLELISM", text)
            assert settings_from(SERVERS).parallelism == value

    @pytest.mark.parametrize("written", [300_000, "300000", "PT5M", timedelta(minutes=5)])
    def test_durations_can_be_milliseconds_iso_text_or_timedeltas(
        self, written: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert settings_from({**SERVERS, "task_timeout_ms": written}).task_timeout_ms == 300_000
        if isinstance(written, str):
            monkeypatch.setenv("MILLSTREAM_TASK_TIMEOUT_MS", written)
            assert settings_from(SERVERS).task_timeout_ms == 300_000

    @pytest.mark.parametrize("written", ["5m", "P", "PT", "PX", 0.5])
    def test_values_that_are_not_durations_are_refused(self, written: Any) -> None:
        with pytest.raises(SettingsError, match="the setting 'task_timeout_ms' cannot be"):
            settings_from({**SERVERS, "task_timeout_ms": written})


class _FakeClient:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
