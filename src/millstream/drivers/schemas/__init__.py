"""Serdes whose schemas are kept in a schema registry: Avro, JSON Schema and Protobuf in Confluent's wire format."""
