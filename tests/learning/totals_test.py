"""Metrics combined over microbatches and passes."""

import jax.numpy as jnp

from grpo_jax.learning import totals


def test_metrics_are_summed_or_taken_the_maximum_of_by_their_names():
  def pair(*x):
    return (jnp.array(x), jnp.ones(len(x)))

  got = totals.combine_metrics({"a": pair(1.0, 3.0), "b_max": pair(1.0, 3.0)})
  assert {k: (float(t), float(c)) for k, (t, c) in got.items()} == {"a": (4, 2), "b_max": (3, 1)}
  for name, (total, count) in got.items():
    start = totals.empty_metric(name)
    again = totals.combine_metrics({name: tuple(jnp.stack(x) for x in zip(start, (total, count)))})
    assert again[name] == (total, count)
