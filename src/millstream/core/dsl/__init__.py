"""The DSL: streams and tables as handles that append nodes to a topology."""
