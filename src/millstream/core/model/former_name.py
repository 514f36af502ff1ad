"""Read pickled state that was written under the project's former name, Penstock."""

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
    """Unpickle data; classes under the former name are mapped to the current ones.

    Args:
        data: The pickle.
    """
    if _FORMER_NAME.encode() in data:  # also if a package with the former name is installed
        return _Unpickler(BytesIO(data)).load()
    return pickle.loads(data)
