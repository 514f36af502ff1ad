"""Golden tests: topologies replayed against recordings of Kafka Streams."""
