"""Runs what nobody should have to trust, within limits."""
