"""How often a loop runs."""

from collectives_test import BY_HAND

from grpo_jax.plan import hlo, trips


def test_trips_of_a_counter_that_does_not_start_at_zero():
  program = hlo.parse(BY_HAND)
  main = program.computations["main"]
  assert trips.trip_count(program, "main", main["known"]) == 3
  assert trips.trip_count(program, "main", main["unknown"]) is None
