"""The example dashboard can be imported into Grafana, and its queries name existing metrics and labels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from millstream.edge.metrics.application_metrics import EXPORTED

DASHBOARD = json.loads((Path(__file__).parents[4] / "examples/grafana/millstream.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
LABELS = {metric.exported: {"application", *metric.labels} for metric in EXPORTED}


def test_the_dashboard_has_the_fields_that_grafana_imports() -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", DASHBOARD["uid"])
    assert DASHBOARD["title"]
    assert isinstance(DASHBOARD["schemaVersion"], int)
    assert "id" not in DASHBOARD, "the number of a dashboard in the database of one Grafana"
    assert set(DASHBOARD["time"]) == {"from", "to"}


def test_all_panels_use_the_variable_for_the_data_source() -> None:
    assert (VARIABLES["datasource"]["type"], VARIABLES["datasource"]["query"]) == ("datasource", "prometheus")
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert VARIABLES["application"]["datasource"] == chosen
    assert all(used["datasource"] == chosen for panel in PANELS for used in (panel, *panel["targets"]))


def test_the_application_variable_lists_the_scraped_applications() -> None:
    values = re.fullmatch(r"label_values\((\w+), (\w+)\)", VARIABLES["application"]["query"])
    assert values is not None
    assert values[2] in LABELS[values[1]]
    assert all("$application" in target["expr"] for panel in PANELS for target in panel["targets"])


def test_panels_do_not_overlap() -> None:
    positions = [panel["gridPos"] for panel in PANELS]
    cells = [
        (x, y)
        for p in positions
        for x in range(p["x"], p["x"] + p["w"])
        for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(p["x"] + p["w"] <= 24 for p in positions)
    assert len({panel["id"] for panel in PANELS}) == len(positions)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_queries_existing_metrics_and_labels(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        query = target["expr"]
        (metric,) = re.findall(r"\bmillstream_\w+", query)
        selected = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", query.partition("{")[2].partition("}")[0])
        grouped = re.search(r"\bby \(([^)]*)\)", query)
        kept = LABELS[metric] if grouped is None else set(re.split(r",\s*", grouped[1]))
        assert {*selected, *kept} <= LABELS[metric]
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept


def test_the_state_panel_queries_only_the_current_state() -> None:
    """A range query would also return earlier states."""
    (state,) = (panel for panel in PANELS if panel["type"] == "stat")
    assert [(target["instant"], target["range"]) for target in state["targets"]] == [(True, False)]
