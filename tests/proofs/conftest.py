"""The proofs run applications as the integration tests do, with the same fixtures."""

from __future__ import annotations

from integration.conftest import apps, quiet_clients

__all__ = ["apps", "quiet_clients"]
