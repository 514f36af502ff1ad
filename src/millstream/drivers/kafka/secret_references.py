"""References to secrets of Kafka clients. Each process fetches the secret when it creates a client.

Spark stores and sends pickled settings in memory, over the network and in files on several hosts. They contain only the
references.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from uuid import uuid4

from millstream.core.model.errors import SettingsError


@dataclass(frozen=True)
class Callback:
    """A user function in client settings, such as ``oauth_cb``. Picklable if the function is.

    Unpickling a setting creates a new function object. The identity, which is equal in every process, lets a process find its cached
    clients.

    Example:
        >>> Callback(len)("four")
        4
    """

    function: Callable[..., Any] = field(repr=False, compare=False)
    identity: str = field(default_factory=lambda: uuid4().hex)

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__qualname__", type(self.function).__qualname__))


@runtime_checkable
class Secret(Protocol):
    """A reference to a secret. Picklable. Its repr is the expression that created it.

    Created by :func:`env`, :func:`file` and :func:`fetched`.

    Source: ``org.apache.kafka.common.config.provider.ConfigProvider`` (KIP-297).
    """

    def fetch(self) -> str:
        """Return the current secret in this process.

        Raises:
            SettingsError: If the secret does not exist.
        """


@dataclass(frozen=True)
class EnvironmentSecret:
    name: str

    def fetch(self) -> str:
        value = os.environ.get(self.name)
        if value is None:
            raise SettingsError(
                f"{self!r} is not set: process {os.getpid()} on {socket.gethostname()} has no environment variable "
                f"{self.name}. Set it for the program and for Spark's executors on every host, or use ms.secret.file(...)"
            )
        return value

    def __repr__(self) -> str:
        return f"ms.secret.env({self.name!r})"


@dataclass(frozen=True)
class FileSecret:
    path: str

    def fetch(self) -> str:
        """Return the file's content on this host, without a trailing newline."""
        try:
            return Path(self.path).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"{self!r} cannot be read by user {os.getuid()} on {socket.gethostname()}: {error}. The file must exist on every host "
                "that runs an executor, and on the host of the program"
            ) from None

    def __repr__(self) -> str:
        return f"ms.secret.file({self.path!r})"


@dataclass(frozen=True)
class ProvidedSecret:
    """A secret that a function returns.

    Attributes:
        provider: The function, with the same identity in every process.
    """

    provider: Callback = field(repr=False)

    def fetch(self) -> str:
        try:
            value = self.provider()
        except Exception as error:
            raise SettingsError(
                f"{self!r} raised {type(error).__name__} on {socket.gethostname()}: {error}. It is called on the host of the "
                "program and on every host that runs an executor, and must work there"
            ) from error
        if not isinstance(value, str):
            raise SettingsError(
                f"{self!r} returned {type(value).__name__}, not str; let it return the secret as str"
            )
        return value

    def __repr__(self) -> str:
        return f"ms.secret.fetched({self.provider.name})"


def env(name: str) -> Secret:
    """Refer to a secret in an environment variable of the program and of Spark's executors.

    Args:
        name: The name of the variable.

    Returns:
        The reference, as a value in the setting ``kafka`` or in the settings of a schema registry. A client that needs a variable that
        does not exist raises ``SettingsError``.

    Source: ``EnvVarConfigProvider`` (KIP-887).

    Example:
        >>> {"sasl.password": env("KAFKA_PASSWORD")}
        {'sasl.password': ms.secret.env('KAFKA_PASSWORD')}
    """
    return EnvironmentSecret(name)


def file(path: str | Path) -> Secret:
    """Refer to a secret in a file on the hosts of the program and of the executors.

    Args:
        path: The file, in UTF-8. One trailing newline is ignored.

    Returns:
        The reference, as for :func:`env`.

    Source: ``DirectoryConfigProvider`` (KIP-421).

    Example:
        >>> file("/run/secrets/kafka")
        ms.secret.file('/run/secrets/kafka')
    """
    return FileSecret(str(path))


def fetched(provider: Callable[[], str]) -> Secret:
    """Refer to a secret that a function returns in each process that creates a client.

    Args:
        provider: A picklable function without parameters that returns the secret.

    Returns:
        The reference, as for :func:`env`.

    Source: ``ConfigProvider`` (KIP-297).

    Example:
        >>> def from_the_vault() -> str: ...
        >>> fetched(from_the_vault)
        ms.secret.fetched(from_the_vault)
    """
    return ProvidedSecret(provider if isinstance(provider, Callback) else Callback(provider))


def with_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's settings with secrets in place of references."""
    return {name: value.fetch() if isinstance(value, Secret) else value for name, value in settings.items()}
