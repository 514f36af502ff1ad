"""The Kubernetes manifests of the examples: the Spark operator knows their fields, and they contain no secrets.

``spark-application.json`` is the part of the schema of SparkApplication v1beta2 (Spark operator 2.5) that the example needs. An
unknown field is an error here; Kubernetes would drop it silently.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.edge.settings.settings import Settings

from .objects import MODULES, WITHOUT

pytestmark = pytest.mark.spark
EXAMPLES = Path(__file__).parents[2] / "examples/kubernetes"
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "number": (int, float),
}


def documents(spark: SparkSession, name: str) -> list[Any]:
    """Read the documents of a YAML file with the parser that comes with Spark."""
    jvm: Any = spark._jvm
    loaded = jvm.org.yaml.snakeyaml.Yaml().loadAll((EXAMPLES / name).read_text()).iterator()
    mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper()
    found = []
    while loaded.hasNext():
        found.append(json.loads(mapper.writeValueAsString(loaded.next())))
    return found


def problems(value: Any, schema: dict[str, Any], where: str) -> list[str]:
    """Return the errors of a value according to a schema."""
    if not isinstance(value, TYPES[schema["type"]]):
        return [f"{where} is no {schema['type']}"]
    found = [f"{where} is {value!r}"] if value not in schema.get("enum", [value]) else []
    if isinstance(value, list):
        found += [
            line
            for index, item in enumerate(value)
            for line in problems(item, schema["items"], f"{where}[{index}]")
        ]
    if isinstance(value, dict) and "properties" in schema:
        found += [f"{where} lacks {name}" for name in schema.get("required", []) if name not in value]
        for name, item in value.items():
            known = schema["properties"].get(name)
            found += problems(item, known, f"{where}.{name}") if known else [f"{where}.{name} is unknown"]
    return found


@pytest.fixture(scope="module")
def word_count(spark: SparkSession) -> Any:
    (manifest,) = documents(spark, "word-count.yaml")
    return manifest


@pytest.fixture(scope="module")
def schema() -> Any:
    return json.loads(Path(__file__).with_name("spark-application.json").read_text())


def test_the_manifest_has_only_fields_that_the_operator_knows(word_count: Any, schema: Any) -> None:
    assert (word_count["apiVersion"], word_count["kind"]) == (
        "sparkoperator.k8s.io/v1beta2",
        "SparkApplication",
    )
    assert problems(word_count["spec"], schema, "spec") == []


def test_unknown_missing_and_invalid_fields_are_found(word_count: Any, schema: Any) -> None:
    wrong = {**word_count["spec"], "restartPolcy": {}, "mode": "clustre"}
    wrong["executor"] = {**wrong["executor"], "cores": "2"}
    del wrong["sparkVersion"]
    assert set(problems(wrong, schema, "spec")) == {
        "spec.restartPolcy is unknown",
        "spec.mode is 'clustre'",
        "spec.executor.cores is no integer",
        "spec lacks sparkVersion",
    }


def test_the_service_account_of_the_driver_may_manage_executor_pods(
    spark: SparkSession, word_count: Any
) -> None:
    account, role, binding = documents(spark, "rights.yaml")
    assert account["metadata"]["name"] == word_count["spec"]["driver"]["serviceAccount"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"]}]
    assert "pods" in role["rules"][0]["resources"]


@pytest.mark.parametrize("side", ["driver", "executor"])
def test_settings_are_valid_and_refer_to_secret_files(
    word_count: Any, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings accept the environment of a pod, which contains the path of each secret, not the secret."""
    pod = word_count["spec"][side]
    environment = {variable["name"]: variable["value"] for variable in pod["env"] if "value" in variable}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = Settings(bootstrap_servers="broker:9093")
    assert settings.exactly_once
    assert settings.secrets_in_clients == ()
    assert settings.kafka["sasl.password"] == ms.secret.file("/run/secrets/kafka/password")
    assert [secret["path"] for secret in pod["secrets"]] == ["/run/secrets/kafka"]
    assert str(settings.state_dir).startswith(pod["volumeMounts"][0]["mountPath"])
    assert {name.lower().removeprefix("millstream_") for name in environment} <= set(Settings.model_fields)


def test_the_manifest_contains_no_secret(word_count: Any) -> None:
    for side in ("driver", "executor"):
        for variable in word_count["spec"][side]["env"]:
            assert ("value" in variable) != bool(
                re.search("SECRET|PASSWORD|TOKEN|ACCESS_KEY", variable["name"])
            )
    assert not any("password" in name for name in word_count["spec"]["sparkConf"])


def test_the_jars_are_those_of_the_deployment_tests(word_count: Any) -> None:
    assert word_count["spec"]["deps"] == {"packages": MODULES, "excludePackages": WITHOUT}


def test_the_image_contains_the_program_of_the_manifest(word_count: Any) -> None:
    image = (EXAMPLES.parent / "docker/Dockerfile").read_text()
    program = word_count["spec"]["mainApplicationFile"].removeprefix("local://")
    assert f"examples/{Path(program).name} {Path(program).parent}/" in image
    assert f"ARG SPARK={word_count['spec']['sparkVersion']}\n" in image
    assert f"USER {word_count['spec']['driver']['securityContext']['runAsUser']}\n" in image
