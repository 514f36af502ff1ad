"""The application: how it starts, runs, replaces its query, and ends."""
