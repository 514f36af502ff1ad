"""Records slices of topics, and replays them."""
