"""Keeps a run's folder: checkpoints, lock, metrics, signals."""
