"""The values everything else is made of: records, ids, times, serdes, errors."""
