"""Kafka, through confluent-kafka: reading ranges, sending, and asking the broker."""
