"""What a session of Millstream's own starts with."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.sql import SparkSession

from millstream.drivers.spark.driver.session import use_this_python

pytestmark = pytest.mark.spark


def test_workers_import_the_installed_package(spark: SparkSession) -> None:
    """Each process compiles an archive's modules again."""

    def package(_: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    use_this_python()  # as an application does
    assert spark.sparkContext.parallelize([0], 1).map(package).collect() == [pyspark.__file__]
