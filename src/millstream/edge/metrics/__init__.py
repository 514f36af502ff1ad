"""Metrics outside of the process: for Prometheus and OpenTelemetry. Imported only by applications that have asked for it."""
