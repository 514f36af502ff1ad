"""Programs: a topology with everything that an application derives from it. An edit replaces the program as a whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from millstream.core.model.errors import ArgumentError
from millstream.core.topology.async_nodes import with_additional_stores
from millstream.core.topology.evolution import checked_renames
from millstream.core.topology.plan import Plan
from millstream.core.topology.topology import Topology
from millstream.drivers.spark.executor.copies import CopiesSpec
from millstream.edge.planning.plans import check_fan_out, check_rates, planned
from millstream.edge.planning.store_engines import copies_spec
from millstream.edge.settings.settings import Settings


@dataclass(frozen=True)
class Program:
    """What an application runs: a topology, its plan, and what follows from both.

    Attributes:
        renamed_stores: Old names of stores, including additional stores, with their new names.
    """

    topology: Topology
    plan: Plan
    copies: CopiesSpec
    renamed_stores: Mapping[str, str]

    def matching(self, settings: Settings, existing: Collection[str]) -> Plan:
        if not self.plan.topics_vary:
            return self.plan
        return planned(self.topology, self.plan.application_id, settings, existing)

    def planned_with(self, settings: Settings) -> Program:
        """Return the same program, planned for another number of workers per partition."""
        return replace(self, plan=planned(self.topology, self.plan.application_id, settings))


def program_of(
    topology: Topology, application_id: str, settings: Settings, renamed_stores: Mapping[str, str] | None
) -> Program:
    """Plan a topology.

    Raises:
        SettingsError: If settings or new names do not fit the topology.
    """
    if not isinstance(topology, Topology):
        raise ArgumentError(
            f"{topology!r} is a {type(topology).__name__}, not a ms.Topology; if it is a builder, call its build()"
        )
    own = topology.copy()
    plan = planned(own, application_id, settings)
    check_rates(plan, settings)
    check_fan_out(plan, settings)
    settings.policies.check_nodes(plan)
    copies = copies_spec(plan, settings, settings.home(application_id) / "tasks")
    renamed = checked_renames(renamed_stores or {}, plan.store_fingerprints())
    return Program(own, plan, copies, with_additional_stores(renamed, plan.keepers))
