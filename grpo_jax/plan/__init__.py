"""Estimates what a run would do on TPUs that are not there."""
