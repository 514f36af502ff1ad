"""Where a secret of Kafka's clients is kept: ``kafka={"sasl.password": ms.secret.env("KAFKA_PASSWORD")}``."""

from millstream.drivers.kafka.secret import Secret, env, fetched, file

__all__ = ["Secret", "env", "fetched", "file"]
