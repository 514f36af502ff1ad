"""What an application asks of the broker and keeps on it."""
