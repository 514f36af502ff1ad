"""Asynchronous operators in a task: their in-flight records, from arrival until the effects are applied."""
