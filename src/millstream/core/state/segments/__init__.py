"""The log of a task's stores: segments, the manifest, compaction."""
