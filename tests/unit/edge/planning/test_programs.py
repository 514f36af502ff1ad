"""A program that is not a topology is refused with a hint."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.core.model.errors import TopologyError
from millstream.edge.planning.programs import program_of
from millstream.edge.settings.settings_loading import settings_from


@pytest.mark.parametrize("given", [ms.StreamsBuilder(), None])
def test_a_program_that_is_not_a_topology_is_refused(given: Any) -> None:
    settings = settings_from({"bootstrap_servers": "localhost:1"})
    with pytest.raises(TopologyError, match=r"not a ms.Topology; if it is a builder, call its build\(\)"):
        program_of(given, "app", settings, None)
