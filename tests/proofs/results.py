"""Results of the full proofs, for the table in ``docs/reference/asynchronous-proofs.md``: counts and ratios."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from .sizes import FULL

DIRECTORY: Final = Path(__file__).parents[2] / "build" / "proofs"


def write_result(name: str, **values: Any) -> None:
    """Write the result of a proof to ``build/proofs/NAME.json``; a short proof only prints it.

    Args:
        name: Name of the proof.
        values: Counts and ratios; nothing that depends more on the machine than on Millstream.
    """
    text = json.dumps(values, indent=1)
    print(name, text)  # noqa: T201 - pytest shows it when the proof fails
    if FULL:
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        (DIRECTORY / f"{name}.json").write_text(text + "\n")
