"""Secrets of Kafka's clients, named by where they are kept: each process fetches them where it makes a client.

What an application gives Spark is pickled, and lies where Spark puts it: in memory of several hosts, on the way between them, in files.
A reference says nothing to whoever reads it there.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from millstream.core.model.errors import SettingsError
from millstream.drivers.kafka.callbacks import Callback


@runtime_checkable
class Secret(Protocol):
    """Says where a secret is kept. Picklable; it prints as what was written."""

    def fetch(self) -> str:
        """Return the secret, as it is now, in this process.

        Raises:
            SettingsError: If it is not there.
        """


@dataclass(frozen=True)
class EnvironmentSecret:
    """A secret in a variable of the environment.

    Attributes:
        name: The variable.
    """

    name: str

    def fetch(self) -> str:
        """Return the variable of this process."""
        found = os.environ.get(self.name)
        if found is None:
            raise SettingsError(
                f"{self!r} is not there: the process {os.getpid()} on {socket.gethostname()} has no environment variable "
                f"{self.name}. Set it for the program and for Spark's executors on every host, or use ms.secret.file(...)"
            )
        return found

    def __repr__(self) -> str:
        return f"ms.secret.env({self.name!r})"


@dataclass(frozen=True)
class FileSecret:
    """A secret in a file.

    Attributes:
        path: The file.
    """

    path: str

    def fetch(self) -> str:
        """Return what the file holds on this host, without the end of its last line."""
        try:
            return Path(self.path).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"{self!r} cannot be read by user {os.getuid()} on {socket.gethostname()}: {error}. The file has to be there on "
                "every host that runs an executor, and on the program's"
            ) from None

    def __repr__(self) -> str:
        return f"ms.secret.file({self.path!r})"


@dataclass(frozen=True)
class ProvidedSecret:
    """A secret that a function fetches.

    Attributes:
        provider: The function; it keeps its identity in every process, so that clients are found again by it.
    """

    provider: Callback = field(repr=False)

    def fetch(self) -> str:
        """Call the function."""
        try:
            found = self.provider()
        except Exception as error:
            raise SettingsError(
                f"{self!r} raised {type(error).__name__} on {socket.gethostname()}: {error}"
            ) from error
        if not isinstance(found, str):
            raise SettingsError(f"{self!r} returned {type(found).__name__}, not str")
        return found

    def __repr__(self) -> str:
        return f"ms.secret.fetched({self.provider.name})"


def env(name: str) -> Secret:
    """Name a secret that is a variable of the environment, of the program and of Spark's executors.

    Args:
        name: The variable.

    Example:
        >>> {"sasl.password": env("KAFKA_PASSWORD")}
        {'sasl.password': ms.secret.env('KAFKA_PASSWORD')}
    """
    return EnvironmentSecret(name)


def file(path: str | Path) -> Secret:
    """Name a secret that is the content of a file, on the program's host and on those of executors.

    Args:
        path: The file; UTF-8, and one line end at its end does not count.

    Example:
        >>> file("/run/secrets/kafka")
        ms.secret.file('/run/secrets/kafka')
    """
    return FileSecret(str(path))


def fetched(provider: Callable[[], str]) -> Secret:
    """Name a secret that a function fetches, in each process that makes a client.

    Args:
        provider: Takes nothing and returns the secret; picklable.

    Example:
        >>> def from_the_vault() -> str: ...
        >>> fetched(from_the_vault)
        ms.secret.fetched(from_the_vault)
    """
    return ProvidedSecret(provider if isinstance(provider, Callback) else Callback(provider))


def with_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a client with what its references name.

    Args:
        settings: librdkafka's settings.

    Raises:
        SettingsError: If a secret is not there.
    """
    return {name: value.fetch() if isinstance(value, Secret) else value for name, value in settings.items()}
