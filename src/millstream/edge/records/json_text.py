"""JSON that every program can read."""

from __future__ import annotations

import json
from typing import Any


def json_text(data: Any) -> str:
    """Return data as JSON. NaN and infinite numbers, which JSON lacks, become text."""
    try:
        return json.dumps(data, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(data), parse_constant=str))
