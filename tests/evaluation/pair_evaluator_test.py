"""Evaluations on pairs that are held out."""

from passed_on_test import groups, stub

from grpo_jax.evaluation import pair_evaluator


def test_pairs_of_which_one_is_missing_are_not_evaluated():
  own = pair_evaluator.PairEvaluator.__new__(pair_evaluator.PairEvaluator)
  own.offline = stub(held_out=3)
  r = groups(3)
  r.lengths[1, 1] = 0
  own.take(r)
  assert own.pairs is not None and own.pairs.tokens[:, 0, 0].tolist() == [0, 2]
