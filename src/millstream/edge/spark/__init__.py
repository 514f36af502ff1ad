"""What an application needs of Spark, and of a session that is not its own."""
