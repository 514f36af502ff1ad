"""Taps: samples of the records that reach nodes, for inspection."""
