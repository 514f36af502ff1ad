"""Functions among the settings of clients, such as ``oauth_cb``, which keep their identity when they cross to another process.

Each time a setting is unpickled its function is another object. So a function travels with an identity that was made once, and
the clients of a process are found again by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4


@dataclass(frozen=True)
class Callback:
    """A function of the user's that a client calls. Picklable if the function is.

    Attributes:
        function: The function.
        identity: What tells it from other functions, in every process.

    Example:
        >>> Callback(len)("four")
        4
    """

    function: Callable[..., Any] = field(repr=False, compare=False)
    identity: str = field(default_factory=lambda: uuid4().hex)

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        return self.function(*arguments)

    @property
    def name(self) -> str:
        """What the function is called, for people."""
        return str(getattr(self.function, "__qualname__", type(self.function).__qualname__))
