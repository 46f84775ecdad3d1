import jax
import jax.numpy as jnp


def sample(logits, uniforms, *, temperature, top_k, top_p, min_p):
  if temperature == 0:
    t = logits.argmax(-1).astype(jnp.int32)
    lp = jax.nn.log_softmax(logits)
  else:
    lp = jax.nn.log_softmax(logits / temperature)
    c = jnp.cumsum(jnp.exp(lp), -1)
    t = jnp.minimum((c <= uniforms[:, None] * c[:, -1:]).sum(-1), logits.shape[-1] - 1).astype(jnp.int32)
  l = jnp.take_along_axis(lp, t[:, None], 1)[:, 0]
  return t, l, l
