"""Properties: engine, stores and log against models, over inputs that Hypothesis makes up.

Runs are deterministic and bounded (profile `millstream`); `HYPOTHESIS_PROFILE=random` takes other examples each time, and
`thorough` many more of them. A test that depends on rare states counts how often it was in them, and demands far less than
the usual: what is drawn changes with every edit of the code.
"""
