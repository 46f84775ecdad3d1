"""Checks what the settings of objectives and data sets mean."""

from grpo_jax.config import comments


def test_the_meaning_is_the_comment_behind_a_setting_or_on_the_lines_before_it():
  found = comments.meanings("objectives")
  assert found["sapo"]["tau_positive"] == "how fast the gate closes where A > 0"
  assert found["shared_settings"]["scale"] == (
    "what the difference is divided by: the std of the rewards of the group, of those of the "
    "batch, or of all advantages of the batch, or nothing: group, batch, advantages, none"
  )
  assert "temperature" not in found["shared_settings"]  # of the example in its docstring
  assert "max_steps" in comments.meanings("data")["arithmetic"]
