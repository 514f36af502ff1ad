"""Hadoop in one JVM, from Maven: HDFS with a name node and a data node, and YARN with a resource manager and two node managers."""

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
"""The version of the Hadoop clients in PySpark."""
_NODES: Final = 2
_YARN: Final = {
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
}
_MODULES: Final = (
    f"org.apache.hadoop:hadoop-client-minicluster:{VERSION}",
    "org.junit.jupiter:junit-jupiter-api:5.13.4",  # MiniDFSCluster uses it
    "org.bouncycastle:bcpkix-jdk18on:1.82",  # the resource manager creates certificates with it
)


@contextmanager
def hdfs(home: Path) -> Iterator[str]:
    """Run HDFS on the loopback interface; yield its URL."""
    with _java(home) as gateway, _files(gateway.jvm) as files:
        yield files


@contextmanager
def yarn(home: Path) -> Iterator[tuple[str, Path]]:
    """Run HDFS and YARN on the loopback interface.

    Yields:
        The URL of HDFS, and the directory of Hadoop's configuration.
    """
    with _java(home) as gateway, _files(gateway.jvm) as files:
        jvm: Any = gateway.jvm
        conf = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
        for name, value in {**_YARN, "fs.defaultFS": files}.items():
            conf.set(name, value)
        cluster = jvm.org.apache.hadoop.yarn.server.MiniYARNCluster("yarn", _NODES, 1, 1)
        try:
            cluster.init(conf)
            cluster.start()
            cluster.waitForNodeManagersToConnect(60_000)
            yield files, _write_configuration(jvm, cluster.getConfig(), home / "hadoop-conf")
        finally:
            cluster.stop()


@contextmanager
def _files(jvm: Any) -> Iterator[str]:
    conf = jvm.org.apache.hadoop.conf.Configuration()
    cluster = jvm.org.apache.hadoop.hdfs.MiniDFSCluster.Builder(conf).numDataNodes(1).build()
    try:
        cluster.waitActive()
        yield str(cluster.getFileSystem().getUri())
    finally:
        cluster.shutdown()


def _write_configuration(jvm: Any, conf: Any, directory: Path) -> Path:
    directory.mkdir()
    for name in ("core-site.xml", "yarn-site.xml"):
        stream = jvm.java.io.FileOutputStream(str(directory / name))
        conf.writeXml(stream)
        stream.close()
    return directory


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
