"""The file with the address of an application's page, for ``millstream page`` on the same host.

Only the application's user may read it, because the address contains the token. The application deletes it when it ends, and at its start,
because an application that was killed could not, and the next start may have no page. Whoever writes or deletes it holds the lease.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from millstream.core.model.errors import ControlError
from millstream.edge.control.control_file import write_private_file

_FILE: Final = "page.url"


def announce(home: Path, url: str, token: str) -> Path:
    """Write the page's URL with its token; return the file.

    Raises:
        SettingsError: If the file cannot be written.
    """
    file = home / _FILE
    write_private_file(file, f"{url}/#{token}\n")
    return file


def delete_address(home: Path) -> None:
    """Delete the file; deleting it twice is harmless."""
    (home / _FILE).unlink(missing_ok=True)


def address_of(home: Path, application_id: str) -> str:
    """Return the URL, with the token, of the page of an application on this host.

    Raises:
        ControlError: If the application has no page, or the file cannot be read.
    """
    try:
        return (home / _FILE).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ControlError(
            f"application {application_id!r} has no page that this user can open ({error.strerror or error}: "
            f"{str(home / _FILE)!r}). Start it with page_port=0, or pass the application's --state-dir"
        ) from None
