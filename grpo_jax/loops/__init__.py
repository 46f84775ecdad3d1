"""Holds what a run does, from top to bottom."""
