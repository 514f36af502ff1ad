"""Settings from the options ``--set`` and ``--bootstrap-servers``."""

from __future__ import annotations

import re
from typing import Any

import pytest

from millstream.core.model.errors import SettingsError
from millstream.edge.cli.setting_options import settings_in
from millstream.edge.settings.settings_loading import settings_from


@pytest.mark.parametrize(
    ("word", "name", "expected"),
    [
        ('kafka={"security.protocol": "SSL"}', "kafka", {"security.protocol": "SSL"}),
        ('spark={"spark.executor.memoryOverhead": "1g"}', "spark", {"spark.executor.memoryOverhead": "1g"}),
        ('max_records_per_second={"orders": 100}', "max_records_per_second", {"orders": 100}),
        ('app_config={"a=b": [1, null]}', "app_config", {"a=b": [1, None]}),
        ('py_modules=["shop", "tools"]', "py_modules", ["shop", "tools"]),
        ("py_modules=null", "py_modules", None),
        ("parallelism=auto", "parallelism", "auto"),
        ("parallelism=4", "parallelism", 4),
        ('parallelism={"orders": 2, "clicks": "auto"}', "parallelism", {"orders": 2, "clicks": "auto"}),
        ("bootstrap_servers=[::1]:9092", "bootstrap_servers", "[::1]:9092"),
        ("output=json", "output", "json"),
    ],
)
def test_a_setting_is_parsed_as_its_type(word: str, name: str, expected: Any) -> None:
    keywords = {"bootstrap_servers": "b:1", **settings_in([word])}
    assert getattr(settings_from(keywords), name) == expected


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["kafka=acks=all"], """'kafka' is not JSON (Expecting value"""),
        (["kafka=acks=all"], """write it as --set 'kafka={"name": "value"}'"""),
        (["py_modules=shop"], """write it as --set 'py_modules=["name"]'"""),
        (["app_config=" + "[" * 100_000], "'app_config' is not JSON"),
        (["kafka.acks=all"], "there is no setting 'kafka.acks'"),
        (["topology=x"], "there is no setting 'topology'"),
        (["application_id=x"], "there is no setting 'application_id'"),
        (["output=json", "output=lines"], "the setting 'output' is given twice"),
        (["=x"], "'=x' is not a setting; write name=value"),
        (["output"], "'output' is not a setting; write name=value"),
    ],
)
def test_an_invalid_unknown_or_repeated_setting_is_refused(words: list[str], why: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(why)):
        settings_in(words)


def test_bootstrap_servers_that_are_given_twice_are_refused() -> None:
    with pytest.raises(SettingsError, match="'bootstrap_servers' is given twice"):
        settings_in(["bootstrap_servers=b:1"], "b:2")
