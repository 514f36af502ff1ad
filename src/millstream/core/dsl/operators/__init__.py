"""Operators: functions that append the nodes of an operator to the graph. The methods of the handles call them."""
