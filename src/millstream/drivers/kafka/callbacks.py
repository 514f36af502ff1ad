"""Functions in client settings, such as ``oauth_cb``, with an identity that survives pickling.

Unpickling a setting creates a new function object. The identity, which is created once, lets a process find its cached clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4


@dataclass(frozen=True)
class Callback:
    """A user function that a client calls. Its identity is equal in every process. Picklable if the function is.

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
