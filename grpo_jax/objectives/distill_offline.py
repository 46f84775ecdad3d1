"""Off-policy distillation: the likelihood of the teacher's samples. Coefficient 1 on every token.

It is SFT on other data. In expectation over the teacher's samples the gradient is that of
KL(pi_teacher || pi), where `distill.py`, on the student's samples, has KL(pi || pi_teacher).
"""

import dataclasses

from grpo_jax.objectives import sft

OBJECTIVE = dataclasses.replace(sft.OBJECTIVE, data=("samples",), teacher="offline.teacher")
