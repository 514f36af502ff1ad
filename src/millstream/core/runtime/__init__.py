"""Planning of micro-batches: what the next one reads, what is paused or throttled, and where a start continues."""
