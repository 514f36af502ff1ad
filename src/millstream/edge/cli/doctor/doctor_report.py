"""The table of checks, and the output of findings."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from millstream.core.model.errors import SettingsError
from millstream.edge.cli.doctor.brokers import check_brokers, check_jars
from millstream.edge.cli.doctor.executors import check_executors
from millstream.edge.cli.doctor.finding import Check, Finding, Inquiry
from millstream.edge.cli.doctor.machine import (
    check_disk,
    check_java,
    check_lmdb_file,
    check_loopback,
    check_memory,
    check_packages,
    check_python,
)

if TYPE_CHECKING:
    from millstream.edge.settings.settings import Settings

_NO_SERVERS = "localhost:9092"


@dataclass(frozen=True)
class DoctorEntry:
    """A check in the table. ``required`` if Millstream cannot work when the check fails."""

    check: Check
    required: bool = True


CHECKS: tuple[DoctorEntry, ...] = (
    DoctorEntry(check_python),
    DoctorEntry(check_java),
    DoctorEntry(check_packages),
    DoctorEntry(check_memory),
    DoctorEntry(check_disk),
    DoctorEntry(check_lmdb_file),
    DoctorEntry(check_loopback),
    DoctorEntry(check_brokers),
    DoctorEntry(check_executors),
    DoctorEntry(check_jars, required=False),
)


def examine(
    bootstrap_servers: str | None,
    topics: tuple[str, ...],
    console: Console | None = None,
    *,
    master: str | None = None,
) -> int:
    """Run all checks, print the findings, and return the exit code: 1 if a required check fails.

    Args:
        bootstrap_servers: Brokers to check; None for the brokers of the settings, if any.
        master: Spark master whose executors are checked; None to skip them.
    """
    console = console or Console()
    inquiry, about_settings = inquiry_for(bootstrap_servers, topics)
    inquiry = replace(inquiry, master=master)
    _print(console, about_settings, required=True)
    failed = [] if about_settings.ok else [about_settings]
    for entry in CHECKS:
        for finding in _findings_of(entry, inquiry):
            _print(console, finding, required=entry.required)
            if entry.required and not finding.ok:
                failed.append(finding)
    names = ", ".join(finding.name for finding in failed)
    ending = (
        f"Required checks that failed ({len(failed)}): {names}" if failed else "All required checks passed."
    )
    console.print(Text(f"\n{ending}"), soft_wrap=True)
    return 1 if failed else 0


def inquiry_for(bootstrap_servers: str | None, topics: tuple[str, ...]) -> tuple[Inquiry, Finding]:
    """Return the inquiry from the environment and the settings file, and a finding about these settings."""
    from millstream.edge.settings.setting_sources import servers_are_named
    from millstream.edge.settings.settings import Settings
    from millstream.edge.settings.settings_loading import settings_from

    given = {} if bootstrap_servers is None else {"bootstrap_servers": bootstrap_servers}
    file = os.environ.get("MILLSTREAM_CONFIG")
    about = Finding("settings", True, f"valid, with the file {file}" if file else "valid")
    try:
        settings = settings_from(given)
        return _inquiry(settings, settings.bootstrap_servers, topics), about
    except SettingsError as error:
        problem = error  # perhaps only that no broker is set
    try:
        if given or servers_are_named():
            raise problem
        settings = settings_from({"bootstrap_servers": _NO_SERVERS})
    except SettingsError as error:
        fix = "correct --bootstrap-servers, the environment variable MILLSTREAM_... or the file that MILLSTREAM_CONFIG names"
        settings, about = Settings.model_construct(), Finding("settings", False, str(error), fix)
    return _inquiry(settings, bootstrap_servers or None, topics), about


def _inquiry(settings: Settings, servers: str | None, topics: tuple[str, ...]) -> Inquiry:
    client = {**settings.kafka, "client.id": "millstream-doctor"}
    return Inquiry(servers, topics, Path(settings.state_dir), client, spark=settings.spark)


def _findings_of(entry: DoctorEntry, inquiry: Inquiry) -> list[Finding]:
    """Return the findings of a check; one finding if its package cannot be imported."""
    try:
        found = entry.check(inquiry)
    except ImportError as error:
        name = entry.check.__name__.removeprefix("check_").replace("_", " ")
        return [
            Finding(name, False, f"cannot be checked: {error}", "install the missing packages listed above")
        ]
    return [found] if isinstance(found, Finding) else found


def _print(console: Console, finding: Finding, *, required: bool) -> None:
    mark, style = ("ok", "green") if finding.ok else ("problem", "red") if required else ("note", "yellow")
    line = Text.assemble((f"{mark:8}", style), (f"{finding.name}: ", "bold"), finding.detail)
    console.print(line, soft_wrap=True)
    if not finding.ok:
        console.print(Text(f"        -> {finding.fix}"), soft_wrap=True)
