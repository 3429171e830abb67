"""Graphs that layers compute on, and how they are made."""
