"""The Docker files of the examples: the services fit together, the settings are valid, and the image contains the program.

``make deployments`` also checks them with hadolint and the schema of Compose.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from millstream.edge.settings.settings import Settings

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/docker"
IMAGE = (EXAMPLES / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((EXAMPLES / "compose.yaml").read_text())


def test_health_conditions_have_a_health_check_and_volumes_are_declared(compose: Any) -> None:
    services = compose["services"]
    for service in services.values():
        for name, waits in service.get("depends_on", {}).items():
            assert waits["condition"] != "service_healthy" or "healthcheck" in services[name]
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in compose["volumes"]


def test_services_use_addresses_that_the_broker_advertises(compose: Any) -> None:
    broker = compose["services"]["kafka"]["environment"]
    advertised = dict(re.findall(r"(\w+)://([\w.]+:\d+)", broker["KAFKA_ADVERTISED_LISTENERS"]))
    listening = dict(re.findall(r"(\w+)://:(\d+)", broker["KAFKA_LISTENERS"]))
    protocols = dict(pair.split(":") for pair in broker["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    assert set(listening) == set(protocols)
    assert set(advertised) == set(listening) - {broker["KAFKA_CONTROLLER_LISTENER_NAMES"]}
    assert broker["KAFKA_INTER_BROKER_LISTENER_NAME"] in advertised
    assert advertised["CONTAINERS"] == f"kafka:{listening['CONTAINERS']}"
    assert compose["services"]["kafka"]["ports"] == [
        f"127.0.0.1:{listening['HOST']}:{advertised['HOST'].partition(':')[2]}"
    ]
    used = set(re.findall(r"kafka:\d+", str(compose["services"]["topics"]["command"])))
    assert used | {compose["services"]["word-count"]["command"][-1]} == {advertised["CONTAINERS"]}


def test_the_topics_of_the_program_are_created(compose: Any) -> None:
    program = (ROOT / "examples/wordcount.py").read_text()
    topics = re.search(r"for topic in ([\w ]+);", compose["services"]["topics"]["command"][-1])
    assert topics is not None
    assert set(topics[1].split()) == set(re.findall(r'(?:stream|to)\("(\w+)"', program))


def test_the_settings_are_valid_and_the_state_is_on_a_volume(
    compose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = compose["services"]["word-count"]
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, value)
    settings = Settings(bootstrap_servers=service["command"][-1])
    assert settings.exactly_once
    assert service["volumes"] == [f"state:{settings.state_dir}"]
    assert f"--owner=spark {settings.state_dir}" in IMAGE  # the program may write there
    known = {name.lower().removeprefix("millstream_") for name in service["environment"]}
    assert known <= set(Settings.model_fields)


def test_the_image_contains_the_program_that_is_started(compose: Any) -> None:
    service = compose["services"]["word-count"]
    assert (EXAMPLES / service["build"]["context"]).resolve() == ROOT
    assert ROOT / service["build"]["dockerfile"] == EXAMPLES / "Dockerfile"
    assert re.search(rf"^FROM \S+ AS {service['build']['target']}$", IMAGE, re.MULTILINE)
    program = Path(service["command"][1])
    assert f"COPY examples/{program.name} {program.parent}/" in IMAGE
    assert (ROOT / "examples" / program.name).is_file()
