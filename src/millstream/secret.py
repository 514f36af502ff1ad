"""References to secrets of Kafka's clients: ``kafka={"sasl.password": ms.secret.env("KAFKA_PASSWORD")}``."""

from millstream.drivers.kafka.secret_references import Secret, env, fetched, file

__all__ = ["Secret", "env", "fetched", "file"]
