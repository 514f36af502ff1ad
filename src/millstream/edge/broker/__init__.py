"""What an application reads from the broker and keeps on it."""
