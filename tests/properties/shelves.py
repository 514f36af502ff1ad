"""Former names of `store_harness`, for tests/unit."""

from .store_harness import StoreHarness as Shelf
from .store_harness import StoreTask as TaskOfOne

__all__ = ["Shelf", "TaskOfOne"]
