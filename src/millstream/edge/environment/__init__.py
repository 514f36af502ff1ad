"""Settings from environment variables whose names lead into a dictionary, and from files of such variables."""
