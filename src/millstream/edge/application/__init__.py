"""The application: how it starts, runs, goes on with another query, and ends."""
