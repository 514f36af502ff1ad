"""Tables in tests: records and stores as text, compared with a diff."""
