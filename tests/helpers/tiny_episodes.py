"""A tiny run whose completions are episodes, and its environment."""

from grpo_jax.types import Turn

EPISODES = {
  "steps": 4,
  "data.prompts": 8,
  "environment.name": f"{__file__}",
  "environment.arguments": (("most", 3),),
  "sampler.max_length": 20,
  "sampler.stop": tuple("0123456789"),
  "rewards.functions": (),
  "rewards.on_error": -1.0,
  "eval.reward": f"{__file__}:short",
  "eval.problems": 8,
  "eval.batch": 8,
  "eval.samples": 2,
  "checkpoint.every": 2,
}


def reset(example, key, most):
  return {"answer": example.answer, "left": most}


def step(state, completion, most):
  """Repeats the answer until it has done so `most` times, or a turn is even."""
  left = state["left"] - 1
  if sum(completion.tokens) % 11 == 0:
    raise ValueError("a tool that is broken")
  reward = sum(completion.tokens) % 5 / 4
  if not left or sum(completion.tokens) % 2 == 0:
    return Turn(state, None, reward)
  return Turn(state | {"left": left}, f"{state['answer']}\n", reward)


def short(example, completion):
  return float(len(completion.step_ends) < 3)
