"""Scores completions with reward models and makes rewards of the scores."""
