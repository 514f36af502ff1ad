"""The former name of the project, Penstock, as far as it was stored: state that was written then is read."""

from __future__ import annotations

import pickle
from io import BytesIO
from typing import Any, Final

_NAME: Final = "millstream.core."
_FORMER_NAME: Final = "penstock.core."


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(module.replace(_FORMER_NAME, _NAME, 1), name)


def unpickled(data: bytes) -> Any:
    """Read a pickle; objects of our classes are of the present ones.

    Args:
        data: The pickle.
    """
    if _FORMER_NAME.encode() in data:  # also where a package of that name is installed
        return _Unpickler(BytesIO(data)).load()
    return pickle.loads(data)
