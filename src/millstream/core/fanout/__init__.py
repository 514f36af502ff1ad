"""Fan-out of a hot partition: epochs, key ranges, positions, and the protocol for changing them."""
