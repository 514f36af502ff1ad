"""Taps of a running application: who looks at which node, and what was sampled."""
