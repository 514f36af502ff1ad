"""Drivers: each implements ports of the core with one foreign library, and knows no other driver."""
