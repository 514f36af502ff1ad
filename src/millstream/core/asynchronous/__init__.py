"""Asynchronous: decides which of many in-flight calls start, wait, time out and retire. Pure values; time is an argument."""
