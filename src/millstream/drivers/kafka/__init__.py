"""Kafka, through confluent-kafka: reads offset ranges, produces records, and sends requests to the broker."""
