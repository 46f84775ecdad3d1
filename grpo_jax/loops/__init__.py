"""Contains the loops of training: what a run does from its first step to its last."""
