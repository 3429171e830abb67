"""Readers of data sets in the formats of other projects: one format per module."""
