"""Checks which run of a tracker a folder has."""

from grpo_jax.io.tracker_run import kept_id


def test_a_resumed_run_keeps_its_id_and_one_that_starts_anew_gets_another(tmp_path):
  first = kept_id(str(tmp_path), "tracker", 0)
  assert len(first) == 16 and kept_id(str(tmp_path), "tracker", 5) == first
  assert kept_id(str(tmp_path), "other", 5) != first  # a tracker that is named later
  assert kept_id(str(tmp_path), "tracker", 0) != first
