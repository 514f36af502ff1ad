"""A topology is tested without broker, Spark or Java: `pytest examples/wordcount_test.py`."""

from wordcount import topology

import millstream as ms


def test_counts_words() -> None:
    with ms.testing.TopologyTestDriver(topology) as driver:
        driver.pipe("lines", None, "to be or not to be", timestamp=1)

        counts = [(record.key, record.value) for record in driver.read("counts")]
        assert counts == [("to", 1), ("be", 1), ("or", 1), ("not", 1), ("to", 2), ("be", 2)]
        assert driver.store("counts").get("be").value == 2
