"""The settings of an application and of Kafka's clients."""
