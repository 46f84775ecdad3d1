"""Holds the objectives, one file each."""
