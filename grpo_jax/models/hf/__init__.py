"""A Hugging Face folder to a decoder and its parameters, and back: `config.py` and `tensors.py`."""
