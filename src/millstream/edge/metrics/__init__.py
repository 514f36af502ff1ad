"""Exports metrics to Prometheus and OpenTelemetry; the settings decide whether these modules are imported."""
