"""Millstream inside other Spark queries: a topology as an operator, and Kafka topics as DataFrames."""

from millstream.edge.operator import read_kafka, transform

__all__ = ["read_kafka", "transform"]
