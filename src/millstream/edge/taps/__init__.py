"""Taps of a running application: which nodes are tapped, and the sampled records."""
