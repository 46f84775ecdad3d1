"""Off-policy distillation: the likelihood of the teacher's samples. Coefficient 1 on every token of them.

It is SFT; what differs is where the data comes from. In expectation over the teacher's samples the gradient is that
of KL(pi_teacher || pi), where `distill.py`, on the student's, has KL(pi || pi_teacher).
"""

from grpo_jax.objectives import sft

needs = sft.needs
prepare = sft.prepare
loss = sft.loss
DATA = ("samples",)
READS = sft.READS
