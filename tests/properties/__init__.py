"""Properties: engine, stores and log against models, over inputs that Hypothesis makes up.

Runs are deterministic and bounded (profile `penstock`); `HYPOTHESIS_PROFILE=thorough` looks longer, at random. A test that
depends on rare states counts how often it was in them.
"""
