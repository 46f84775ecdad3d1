"""Configures experiments/measure/benchmark.py: random weights and prompts, forced lengths.

    python -m experiments.measure.benchmark \\
      --config=experiments/measure/benchmarks.py:layers=8,width=512,prompts=4,group=8

It is one GRPO step: sampling, log-probs under a reference and one update.

    :tail           long-tailed lengths of completions, with a mean of a quarter of `completion`
    :mixed          long-tailed lengths of prompts, with a mean of a quarter of `prompt_len`
    :slots=N        decodes N completions at a time
    :refill=false   refills the slots only when all their completions have ended
    :sample=false   learns from made-up tokens, as on long sequences that take long to sample
    :beta=0         has no KL, and no reference
    :mu=N           makes N updates on a rollout
    :variant=NAME   the shape of a published model (grpo_jax/models/variants.py)
    :lora=R         trains adapters of rank R over weights in bfloat16
"""

from ml_collections import ConfigDict

from experiments import arguments
from grpo_jax.errors import SettingError
from grpo_jax.setup import defaults


def get_config(arg: str = "") -> ConfigDict:
  """Returns the config; `arg` is what follows the colon in --config=FILE:arg."""
  args = arguments.parse_arg(
    arg,
    variant="",
    layers=8,
    width=512,
    mlp=1536,
    vocab=8192,
    head_dim=64,
    prompts=4,
    group=8,
    prompt_len=128,
    completion=128,
    slots=0,
    refill=True,
    sample=True,
    beta=0.04,
    mu=1,
    tail=False,
    mixed=False,
    top_p=1.0,
    steps=5,
    dtype="float32",
    weights_dtype="same",
    microbatch=0,
    chunk=1024,
    lora=0,
    scan=False,
    remat="none",
  )
  if not args.refill and (not args.slots or args.slots % args.group):
    raise SettingError(
      f"slots={args.slots}: without refill the slots take whole groups; use a multiple of "
      f"{args.group}"
    )
  c = defaults.get_config()
  c.benchmark = ConfigDict(
    {
      name: args[name]
      for name in (
        "variant",
        "layers",
        "width",
        "mlp",
        "vocab",
        "head_dim",
        "prompt_len",
        "tail",
        "mixed",
        "refill",
        "sample",
      )
    }
  )
  c.steps = args.steps
  c.model.layers = "scan" if args.scan else "unroll"
  c.model.remat = args.remat
  c.model.dtype = c.sampler.dtype = c.sampler.cache_dtype = args.dtype
  c.sampler.weights_dtype = args.weights_dtype
  c.data.prompts = args.prompts
  c.data.max_prompt_length = args.prompt_len
  c.sampler.group = args.group
  c.sampler.max_length = args.completion
  c.sampler.slots = args.slots
  c.sampler.top_p = args.top_p
  c.objective.beta = args.beta
  c.learner.mu = args.mu
  c.learner.microbatch = args.microbatch
  c.learner.chunk = args.chunk
  c.lora.rank = args.lora
  c.lora.base_dtype = "bfloat16"
  return c
