"""Helpers that several test modules import."""
