"""Creating a Spark session."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.core.model.errors import SparkRuntimeError
from millstream.drivers.spark.driver import launch
from millstream.drivers.spark.driver.spark_session import session_for


def test_spark_connect_is_refused_with_an_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(SparkRuntimeError, match=r"Spark Connect.*ms\.spark\.transform, which works there"):
        session_for("shop", None, {})


@pytest.mark.parametrize(
    ("arguments", "defaults", "master"),
    [
        ("", "", "local[*]"),
        ("--master spark://h:1 pyspark-shell", "spark.master yarn", "spark://h:1"),
        ("--conf spark.master=yarn pyspark-shell", "", "yarn"),
        ("pyspark-shell", "# spark.master spark://h:1\nspark.master   yarn\n", "yarn"),
        ("pyspark-shell", "spark.master=k8s://https://h:1", "k8s://https://h:1"),
        ("pyspark-shell", "spark.master.rest.enabled true", "local[*]"),
    ],
)
def test_the_master_is_known_before_the_jvm_starts(
    arguments: str, defaults: str, master: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only with a local master, the web pages are on the loopback interface."""
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    monkeypatch.delenv("MASTER", raising=False)
    assert launch._expected_master() == master


def test_no_secret_is_on_the_command_line_of_the_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of the host can read the command line."""
    on_command_line: dict[str, str] = {}
    monkeypatch.setattr(launch.SparkContext, "_gateway", None)
    monkeypatch.setattr(launch, "start_fork_server", lambda log: None)
    monkeypatch.setattr(launch, "_start_jvm", lambda conf, log: on_command_line.update(conf.getAll()))
    secrets = ["spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.access.key", "spark.ssl.keyPassword"]
    launch.given_to_spark({"spark.driver.memory": "3g", **dict.fromkeys(secrets, "x")}, None)
    assert on_command_line == {"spark.driver.memory": "3g"}


def test_defaults_of_spark_submit_are_not_settings_of_the_user() -> None:
    submit_settings = {
        "spark.app.name": "pyspark-shell",
        "spark.ui.showConsoleProgress": "true",
        "spark.master": "yarn",
    }
    assert launch._without_defaults_of_submit(submit_settings, shell=True) == {"spark.master": "yarn"}
    submit_settings["spark.app.name"] = "mine"
    assert launch._without_defaults_of_submit(submit_settings, shell=False) == submit_settings
