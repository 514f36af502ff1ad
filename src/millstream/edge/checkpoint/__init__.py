"""The state directory and the checkpoint: ownership, continuity, rescale and reset."""
