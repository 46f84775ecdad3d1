"""Checks what differs between the inputs of two runs."""

from grpo_jax.io import inputs_file


def test_a_file_of_code_that_one_side_has_is_no_difference_and_other_inputs_are():
  old = {"data": "d", "code of a.py": "1", "code of gone.py": "x", "weights": "w"}
  new = {"data": "e", "code of a.py": "2", "code of new.py": "y"}
  assert inputs_file.differences(old, new) == ["code of a.py", "data", "weights"]
  assert inputs_file.differences(new, new) == []


def test_earlier_inputs_are_named_by_the_step_that_ended_them(tmp_path):
  (tmp_path / inputs_file.until(20)).touch()
  assert [path.name for path in tmp_path.glob(inputs_file.until("*"))] == ["inputs-until-20.json"]
