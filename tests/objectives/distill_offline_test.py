"""Distillation on the teacher's samples."""

from grpo_jax.objectives import distill_offline, sft


def test_it_is_sft_on_the_samples_of_a_teacher():
  objective = distill_offline.OBJECTIVE
  assert (objective.prepare, objective.loss) == (sft.OBJECTIVE.prepare, sft.OBJECTIVE.loss)
  assert objective.data == ("samples",) and objective.teacher == "offline.teacher"
  assert not sft.OBJECTIVE.teacher
