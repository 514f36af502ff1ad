"""The state directory and the checkpoint: who owns it, what continues it, how it is rescaled and reset."""
