from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "penstock",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=40,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.register_profile("random", settings.get_profile("penstock"), derandomize=False, print_blob=True)
settings.register_profile(
    "thorough",
    settings.get_profile("random"),
    max_examples=1000,
    stateful_step_count=60,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "penstock"))
