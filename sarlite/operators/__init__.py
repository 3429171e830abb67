"""Operators, which aggregate messages over edges, and the table that finds one for a message and a reducer."""
