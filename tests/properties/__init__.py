"""Property tests: engine, stores and log are compared with models, with inputs that Hypothesis generates.

Runs are deterministic and bounded (profile `millstream`); `HYPOTHESIS_PROFILE=random` uses other examples each time, and
`thorough` many more of them. A test that depends on rare states counts its visits to them, and requires far fewer than usual,
because the examples change with every edit of the code.
"""
