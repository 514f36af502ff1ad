"""What Spark needs for an object store with the interface of S3."""

from __future__ import annotations

from typing import Final

from .hadoop import VERSION

_SDK: Final = "2.35.4"
"""The AWS SDK with which this version of Hadoop is built."""
_GROUP: Final = "software.amazon.awssdk"
MODULES: Final = [
    f"org.apache.hadoop:hadoop-aws:{VERSION}",
    *(f"{_GROUP}:{module}:{_SDK}" for module in ("s3", "s3-transfer-manager", "sts", "apache-client")),
]
"""What Spark needs for ``s3a:``, some 20 MB."""
WITHOUT: Final = [f"{_GROUP}:bundle"]
"""All clients of AWS, more than 600 MB, which the first of them asks for."""
