"""The core of Millstream: the semantics of a topology, without side effects.

The core uses no Spark, Kafka client, clock, thread or I/O: time is an argument, and actions are returned as values. The layers, each of
which may import only those after it: ``runtime``; ``dsl``, ``engine``, ``queries``; ``asynchronous``, ``state``, ``topology``;
``ports``, ``fanout``, ``taps``; ``model``, ``metrics``.
"""
