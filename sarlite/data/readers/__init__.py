"""Readers of data sets in other projects' formats: one format a module."""
