"""Faults in the test driver: a crash, a micro-batch that is delivered again, another order of arrival."""
