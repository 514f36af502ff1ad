"""Basic types that all other packages use: records, ids, times, serdes and errors."""
