"""Reads and writes files on a disk or in a bucket."""
