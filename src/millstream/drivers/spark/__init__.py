"""Spark: a topology as one streaming operator between a source and a sink.

``submit`` runs in the Spark driver, ``worker`` in the executors; this package itself holds what crosses between them.
"""
