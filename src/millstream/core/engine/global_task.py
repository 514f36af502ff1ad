"""Global task: a global part at work, one record after the other.

A global store is filled by the same engine as any other: a task over the part's source and the node behind it. A driver
feeds it the records of the topic in the order of their offsets, and applies the changes of each outcome. It differs from
an ordinary task in what it may do. Any host may fill its copy, at any time and more than once; so nothing but the stores
may follow from a record, and only the record may decide what that is. There are no schedules (the context refuses them),
and a record that fails is not sent to the dead-letter topic: each copy would send it again. It is left out and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.core.engine.policy import ErrorPolicies
from millstream.core.engine.step_outcome import Snapshot
from millstream.core.engine.task import Task
from millstream.core.model.ids import TaskId
from millstream.core.ports import ByteStores
from millstream.core.topology.plan import SubTopology


def global_task(
    part: SubTopology,
    *,
    application_id: str,
    stores: ByteStores,
    policies: ErrorPolicies | None = None,
    app_config: Mapping[str, Any] | None = None,
    snapshot: Snapshot | None = None,
) -> Task:
    """Make the task of a global part.

    Args:
        policies: What to do with records that fail; those for the dead-letter topic are skipped.
        snapshot: The last return value of ``Task.snapshot``.
    """
    return Task(
        part,
        TaskId(part.id, 0),
        application_id=application_id,
        stores=stores,
        policies=(policies or ErrorPolicies()).without_dead_letters(),
        app_config=app_config,
        snapshot=snapshot,
    )
