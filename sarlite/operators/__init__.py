"""Operators, which aggregate messages over edges, and the table that maps (message, reducer) to an operator."""
