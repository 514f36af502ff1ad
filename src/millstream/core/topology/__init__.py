"""The topology: frozen nodes that are checked, split into sub-topologies, and laid out over partitions."""
