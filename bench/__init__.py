"""The benchmark: Millstream against Kafka Streams on one broker, and the figures that must not depend on size or time.

``python -m bench`` (or ``make bench``) runs everything and writes ``bench/results.json``. Absolute figures depend on the
machine and on what else it does; therefore what is compared runs one after the other in one run, on the same broker and
the same topic, and only ratios are judged.

- ``__main__``: the command line; ``report``: tables and the file of results; ``machine``: what it ran on.
- ``race``, ``latency``, ``store_size``, ``memory``: one part each, a function that gives a frozen result.
- ``calls``: calls to the outside world beside Confluent's Parallel Consumer.
- ``ours``: what the parts start, a process of its own per measurement, so that every one begins from a cold session.
- ``jobs``, ``load``, ``check``, ``processes``: topologies, records, verification, child processes.
- ``peer/KafkaStreamsPeer.java``: the peer, Kafka Streams with the same topologies.
- ``peer/ParallelConsumerPeer.java``: the peer of the calls.
"""
