"""The cost of each objective on arrays alone: loss and gradient of B = 64 completions of L = 1024
tokens, jitted.

    python tests/helpers/objective_costs.py

Prints microseconds (median of 20) for `prepare`, once a rollout, and for loss and gradient, once an
update. The model's own forward and backward pass is not in it, and is what a step's time goes to.
"""

import statistics
import time

import jax
import objective_cases as cases

LENGTH = 1024
COMPLETIONS = 64


def microseconds(run, *args) -> float:
  jax.block_until_ready(run(*args))
  times = []
  for _ in range(20):
    start = time.perf_counter()
    jax.block_until_ready(run(*args))
    times.append(time.perf_counter() - start)
  return 1e6 * statistics.median(times)


def main() -> None:
  print(f"{jax.devices()[0].device_kind}: B = {COMPLETIONS}, L = {LENGTH}, microseconds")
  print(f"{'':26}{'prepare':>10}{'loss + gradient':>18}")
  for name, (module, changes) in cases.CASES.items():
    objective = module.OBJECTIVE
    longest = {"max_length": LENGTH} if "max_length" in objective.settings() else {}
    cfg = cases.settings(objective, **changes | longest)
    group = 2 if name in cases.PAIRS else 8
    r = cases.rollouts(P=COMPLETIONS // group, G=group, L=LENGTH)
    prepare = jax.jit(lambda r, cfg=cfg: cases.prepare(r, cfg))

    def update(out, batch, objective=objective, cfg=cfg):
      return jax.value_and_grad(lambda o: objective.loss(o, batch, cfg), has_aux=True)(out)

    before, each = (
      microseconds(prepare, r),
      microseconds(jax.jit(update), cases.predictions(objective, r), prepare(r)),
    )
    print(f"{name:26}{before:10.0f}{each:18.0f}")


if __name__ == "__main__":
  main()
