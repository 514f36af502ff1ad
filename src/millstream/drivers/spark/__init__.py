"""Spark: a topology as one streaming operator between a source and a sink.

``driver`` contains code of the Spark driver, ``planner`` code of the planner's process, and ``executor`` code of executors. This package
itself contains what crosses between them.
"""
