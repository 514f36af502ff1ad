"""``millstream fanout``: split a hot partition by key range, and merge it again."""
