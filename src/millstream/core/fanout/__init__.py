"""Fan-out of a hot partition: epochs, ranges, positions, and the protocol that changes them."""
