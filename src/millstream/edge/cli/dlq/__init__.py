"""``millstream dlq``: inspects dead letters, and sends their records back."""
