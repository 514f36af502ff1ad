"""Millstream inside other Spark queries: a topology as an operator, and Kafka topics as DataFrames."""

from millstream.edge.spark.dataframe_operator import read_kafka, transform

__all__ = ["read_kafka", "transform"]
