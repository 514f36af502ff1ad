"""A topology as frozen nodes: checked, split into sub-topologies, and laid out over partitions."""
