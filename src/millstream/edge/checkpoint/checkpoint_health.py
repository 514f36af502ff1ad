"""Checks a checkpoint at a start. The error for a damaged one states the damage and how to recover."""

from __future__ import annotations

from millstream.core.model.errors import CheckpointError
from millstream.core.topology.plan import Plan
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress, Files, progress_from
from millstream.drivers.spark.driver.damage import findings, look

_MOST_SHOWN = 5
"""Maximum number of findings in an error."""


def sound_progress(
    files: Files, location: str, plan: Plan | None = None, *, exactly_once: bool = False
) -> CheckpointProgress | None:
    """Read the progress of a query, and refuse a damaged checkpoint.

    Args:
        plan: The plan of the application, for the advice in the error; None if unknown.

    Returns:
        The progress; None if no micro-batch was planned.

    Raises:
        CheckpointError: If the checkpoint is damaged.
    """
    seen = look(files)
    found = findings(seen)
    if found:
        raise CheckpointError(damaged(location, found, ways_out(plan, exactly_once=exactly_once)))
    return progress_from(seen.offsets, seen.commits, lambda batch: seen.texts[f"offsets/{batch}"])


def damaged(location: str, found: list[str], ways: str) -> str:
    """Return the error text for a damaged checkpoint, with advice."""
    more = [f"and {len(found) - _MOST_SHOWN} more"] if len(found) > _MOST_SHOWN else []
    return (
        f"the checkpoint {location} is damaged, so nothing was started on it and nothing was sent: "
        f"{'; '.join([*found[:_MOST_SHOWN], *more])}. {ways}"
    )


def ways_out(plan: Plan | None, *, exactly_once: bool = False) -> str:
    """Return the ways to recover from a damaged checkpoint, as text."""
    ways = ["restore the whole directory from a copy that was made at one time"]
    stores = None if plan is None else plan.store_fingerprints().keys()
    refused = plan is not None and exactly_once and plan.shuffled_topics  # see checkpoint_ownership
    if plan is not None and stores is not None and not stores - plan.changelogs.keys() and not refused:
        rebuilt = "rebuilds all stores from their changelog topics and " if stores else ""
        taken_over = " (with on_other_checkpoint='take_over')" if exactly_once else ""
        ways.append(
            f"delete it, so that the next start{taken_over} {rebuilt}continues at the committed offsets"
        )
    name = "<application-id>" if plan is None else plan.application_id
    ways.append(f"start over with empty stores: `millstream reset {name}`")
    return f'One of these helps: {"; ".join(ways)}. See docs/how-to/restart-and-recover.md, "When the checkpoint is damaged"'
