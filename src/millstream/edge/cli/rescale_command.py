"""``millstream rescale``: moves the state of a stopped application to more or fewer Spark partitions."""

from __future__ import annotations

import typer

from millstream.core.model.errors import MillstreamError
from millstream.core.model.topics import checked_name
from millstream.drivers.spark.driver.checkpoint import CheckpointProgress, files_of
from millstream.edge.checkpoint.checkpoint_health import sound_progress
from millstream.edge.checkpoint.shuffle_rescaling import moved
from millstream.edge.checkpoint.state_lease import Lease
from millstream.edge.cli.spark_sessions import Sessions
from millstream.edge.settings.settings import Settings


class NotRescalableError(MillstreamError):
    """The checkpoint cannot be rescaled in its current state."""


def rescale(application_id: str, partitions: int, settings: Settings, *, dry_run: bool) -> None:
    """Rescale an application's state, and print the steps.

    Args:
        dry_run: Whether only to print what would be done.

    Raises:
        NotRescalableError: If there is no checkpoint, or its last micro-batch is not complete.
    """
    name = checked_name(application_id, "application")
    location = settings.checkpoint(name)
    with Sessions(name, settings) as sessions:
        lease = Lease.take(settings.home(name), name, "rescaling")
        try:
            progress = sound_progress(files_of(location, sessions.get), location)
            if not _worthwhile(progress, partitions, location):
                return
            if dry_run:
                typer.echo("Nothing was changed (--dry-run).")
                return
            seconds = moved(sessions.get(), location, partitions)
        finally:
            lease.release()
    typer.echo(
        f"Done in {seconds:.1f} s. Start the application with shuffle_partitions={partitions}, or without that "
        "setting, which keeps the number of the checkpoint."
    )


def _worthwhile(progress: CheckpointProgress | None, wanted: int, location: str) -> bool:
    if progress is None:
        raise NotRescalableError(
            f"there is no checkpoint at {location}. Pass the application's --state-dir or --checkpoint-location; an application that has "
            "never run needs only the setting shuffle_partitions"
        )
    if progress.rescaling and progress.shuffle_partitions != wanted:
        raise NotRescalableError(
            f"a rescale to {progress.shuffle_partitions} partitions was interrupted; complete it first with --partitions "
            f"{progress.shuffle_partitions}, or by starting the application"
        )
    if not progress.committed and not progress.rescaling:
        raise NotRescalableError(
            f"micro-batch {progress.batch} was not completed. Start the application once, which completes it, stop it "
            "gracefully (stop(), SIGTERM or Ctrl-C), and then rescale"
        )
    if progress.committed and progress.shuffle_partitions == wanted:
        typer.echo(f"The state already has {wanted} partitions: nothing to do.")
        return False
    typer.echo(
        f"Checkpoint {location}: after micro-batch {progress.batch} the state moves from "
        f"{'an unfinished rescale' if progress.rescaling else progress.shuffle_partitions} to {wanted} partitions.\n"
        "The application must not run meanwhile. It is not running on this host; other hosts cannot be checked."
    )
    return True
