"""``millstream dlq``: look at dead letters, and send their records back."""
