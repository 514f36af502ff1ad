"""Global task: maintains a global store.

A global store is filled by an ordinary task with the store's source and the node that follows it. Each host fills its copy at any time,
possibly more than once. A record may therefore change nothing but the stores, and the change may depend only on the records. There are no
schedules (the context refuses them). A record that fails is skipped and counted instead of sent to the dead-letter topic, because each
copy would send it again.
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
    """Create the task of a global store.

    Args:
        policies: Error policies. A record that they would send to the dead-letter topic is skipped.
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
