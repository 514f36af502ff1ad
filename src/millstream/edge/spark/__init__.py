"""The Spark session of an application: its checks, errors and required packages; ``ms.spark`` for a user's own query."""
