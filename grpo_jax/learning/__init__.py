"""Computes log-probs, gradients and the optimizer's update."""
