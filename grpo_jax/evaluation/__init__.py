"""Measures policies and reward models on held-out data."""
