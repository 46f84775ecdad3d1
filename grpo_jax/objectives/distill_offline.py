"""Off-policy distillation: the likelihood of the teacher's samples. Coefficient 1 on every token of
them.

It is SFT on other data. In expectation over the teacher's samples the gradient is that of
KL(pi_teacher || pi), where `distill.py`, on the student's samples, has KL(pi || pi_teacher).
"""

from grpo_jax.objectives import sft

DATA = ("samples",)
TEACHER = "offline.teacher"
importance_ratio = None
settings = sft.settings
check = sft.check
needs = sft.needs
prepare = sft.prepare
loss = sft.loss
weights = sft.weights
bounds = sft.bounds
live_advantages = sft.live_advantages
flat = sft.flat
