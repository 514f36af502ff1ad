"""The pure part of Millstream: what a topology means.

No Spark, no Kafka client, no clock, no thread, no I/O: time comes in as an argument, and what is to be done comes out as
values. The layers, each seeing only those after it: ``dsl | engine``, ``state``, ``plan``, ``ports``, ``model``.
"""
