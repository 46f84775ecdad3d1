"""Says what each setting may be, without jax."""
