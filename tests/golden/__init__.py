"""Golden tests compare topologies with recordings of Kafka Streams."""
