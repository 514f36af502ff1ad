"""The benchmark: Millstream against Kafka Streams on one broker, and the figures that must not depend on size or time.

``python -m bench`` (or ``make bench``) runs everything and writes ``bench/results.json``. Absolute figures depend on the
machine and on what else it does; therefore what is compared runs one after the other in one run, on the same broker and
the same topic, and only ratios are judged.

- ``__main__``: the command line; ``report``: tables and the file of results; ``machine``: what it ran on.
- ``race``, ``latency``, ``store_size``, ``memory``, ``transactions``, ``join``, ``calls``, ``states``: one part each, a function that gives a
  frozen result. ``calls`` races Confluent's Parallel Consumer, all other races are against Kafka Streams.
- ``ours``, ``statelogs``: what the parts start, a process of its own per measurement, so that every one begins from a cold session.
- ``jobs``, ``load``, ``check``, ``processes``, ``stage``, ``usage``: topologies, records, verification, child processes, the broker with its
  topics, processor time.
- ``peer/KafkaStreamsPeer.java``, ``peer/ParallelConsumerPeer.java``: the peers, with the same topologies.
- ``regression`` (``make bench-check``), ``scaling`` (``make scaling``), ``stacks`` (``make profile``), ``queries``, ``ranges``,
  ``lost_executor``: measurements with a command line of their own.
- ``readme``: writes the figures of the README and of ``docs/reference/figures.md`` from the file of results.
"""
