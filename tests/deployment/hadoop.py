"""Hadoop in one JVM, from Maven: HDFS with a name node and a data node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from millstream.testing.kafka import resolve_jars

JARS: Final = Path(pyspark.__file__).parent / "jars"
VERSION: Final = next(JARS.glob("hadoop-client-api-*.jar")).stem.rpartition("-")[2]
"""The version of Hadoop whose clients PySpark brings."""
_MODULES: Final = (
    f"org.apache.hadoop:hadoop-client-minicluster:{VERSION}",
    "org.junit.jupiter:junit-jupiter-api:5.13.4",  # what checks the directory of a name node here
)


@contextmanager
def hdfs(home: Path) -> Iterator[str]:
    """Run HDFS on the loopback interface; give its URL."""
    with _java(home) as gateway:
        jvm: Any = gateway.jvm
        conf = jvm.org.apache.hadoop.conf.Configuration()
        cluster = jvm.org.apache.hadoop.hdfs.MiniDFSCluster.Builder(conf).numDataNodes(1).build()
        try:
            cluster.waitActive()
            yield str(cluster.getFileSystem().getUri())
        finally:
            cluster.shutdown()


@contextmanager
def _java(home: Path) -> Iterator[JavaGateway]:
    """Start a JVM that ends with this process."""
    classes = resolve_jars(*_MODULES, folder=f"hadoop-{VERSION}")
    with (home / "hadoop.log").open("wb") as log:
        port, token = launch_gateway(
            classpath=f"{classes}/*:{JARS}/*",
            javaopts=["-Xmx768m", "-XX:+UseSerialGC", f"-Dtest.build.data={home}"],
            die_on_exit=True,
            enable_auth=True,
            cwd=str(home),
            redirect_stdout=log,
            redirect_stderr=log,
        )
        gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True)
        )
        try:
            yield gateway
        finally:
            gateway.shutdown()
