"""Runs code and reads files that nobody should have to trust, within limits."""
