"""Samples completions: the decode loop and its cache."""
