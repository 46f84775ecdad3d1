"""Draws pages and pictures of a run's folder."""
