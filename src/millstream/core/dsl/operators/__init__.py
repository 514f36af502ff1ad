"""Operators: functions that append the nodes of an operator to the graph; the methods of the handles call them."""
