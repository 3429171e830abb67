"""Graphs that layers compute on, and functions that build them."""
