"""Asynchronous operators in a task: their unfinished records, from arrival until their effects are applied."""
