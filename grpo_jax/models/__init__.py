"""Defines the decoder, and reads and writes Hugging Face folders."""
