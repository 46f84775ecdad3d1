"""Turns text into tokens and back, chat templates included."""
