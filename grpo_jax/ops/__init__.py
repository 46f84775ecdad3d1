"""Computes on arrays: pure functions, no flax, no config, no jit."""
