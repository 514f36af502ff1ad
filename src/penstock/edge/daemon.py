"""The Python worker daemon of Spark, with the imports that every worker needs made once, before it forks.

A fresh worker would spend about a second on them. Set as ``spark.python.daemon.module``.
"""

from __future__ import annotations

import confluent_kafka  # noqa: F401
import lmdb  # noqa: F401
import pandas  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.sql.streaming.stateful_processor_api_client
import pyspark.sql.streaming.stateful_processor_util
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import penstock.drivers.kafka.fetch
import penstock.drivers.kafka.publish
import penstock.drivers.lmdb
import penstock.drivers.spark.sink
import penstock.drivers.spark.source
import penstock.drivers.spark.worker.host  # noqa: F401

if __name__ == "__main__":
    manager()
