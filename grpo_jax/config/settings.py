"""Lists every setting once: its name, its default, which values it may have, and its meaning.

The defaults of a config, the checks, `--help` and docs/settings.md come from this table. A new
setting is a line of it. The settings of an objective or a data set are in its own file, and
setup/defaults.py joins them to these. jax is not imported here, so that a bad value is refused at
once.
"""

import operator
from typing import NamedTuple

from ml_collections import ConfigDict

from grpo_jax.config import kinds
from grpo_jax.config.forms import CHAT_ARGUMENTS, LORA_MODULES, MODULES, ROWS, RULES, STOP, TEMPLATE
from grpo_jax.config.kinds import PATH, PLACE, SWITCH, TEXT, Choice, Kind, Number, Whole
from grpo_jax.io import storage


class Setting(NamedTuple):
  """Holds one row of the table."""

  default: object
  kind: Kind  # which values it may have
  meaning: str


class Section(NamedTuple):
  """Settings of one section of the config, or those outside sections, whose name is empty."""

  name: str
  title: str
  settings: dict[str, Setting]


DATA_SETS = ("arithmetic", "gsm8k", "jsonl", "reasoning_gym")
AXIS = Whole(1, also=(-1,))
SHARE = Number(0, 1)
DTYPE = Choice(("float32", "bfloat16"))
# Outside of it sampling is greedy or uniform, and float32 loses the log-probs.
TEMPERATURE = Number(1e-3, 1e3)
REWARDS = (("correct", "math.answer_correct", 1.0),)
MESH_RULES = (
  ("prompt", ("replica", "fsdp")),
  ("sample", ("group",)),
  ("embed", ("fsdp", "group")),
  ("heads", ("tensor",)),
  ("kv_heads", ("tensor",)),
  ("mlp", ("tensor",)),
  ("vocab", ("tensor",)),
)

# One row a setting; a row that does not fit in one line has its meaning on the next.
# fmt: off
SECTIONS = (
  Section("", "A run", {
    "seed": Setting(0, Whole(0, 2**32 - 1), "Seed of fresh parameters, data order and sampling."),
    "loop": Setting("online", PATH,
      "Module of grpo_jax.loops: online, offline, iterative, reward_model, process_reward_model."),
    "steps": Setting(200, Whole(1), "Rollouts (online) or batches (offline) to train on."),
    "init_from": Setting("", PLACE,
      "Start of the policy: a Hugging Face folder or the workdir of a run; empty: fresh weights."),
    "ref_from": Setting("", PLACE,
      "Reference or teacher, of objectives with one: a folder or run; empty: the policy's start."),
    "tokenizer": Setting("", PLACE,
      "Folder with a tokenizer.json; bpe or words: made from the training data; empty: that of "
      "init_from."),
  }),
  Section("model", "Decoder", {
    "variant": Setting("", PATH, "Row of models/variants.py that shapes a fresh model."),
    "hub": Setting("", TEXT, "Weights on the Hugging Face hub that messages recommend."),
    # at least all bytes and two special tokens; the largest vocabularies have 2**18
    "vocab": Setting(4096, Whole(258, 2**20), "Tokens of a tokenizer made by bpe."),
    "layers": Setting("scan", Choice(("scan", "unroll")),
      "Layers of the learner as a loop, which compiles fast, or unrolled."),
    "remat": Setting("none", Choice(("none", "block", "dots")),
      "What the backward pass computes again: nothing, whole layers, or all but matrix products."),
    "dtype": Setting("float32", DTYPE,
      "Activations and matrix products of the learner; its parameters stay float32."),
  }),
  Section("data", "Data sets", {
    "name": Setting("arithmetic", PATH,
      'Module of grpo_jax.data, or your own: "package.module" or "path/file.py".'),
    "path": Setting("", PLACE, "Folder (gsm8k), or file or folder (jsonl), of the data."),
    "train": Setting("train", PATH, "Split to train on."),
    "test": Setting("test", PATH, "Split to evaluate on."),
    "shuffle": Setting(True, SWITCH, "Shuffle the data anew in each epoch."),
    "test_name": Setting("", PATH, "Data set to evaluate on, if it is another one."),
    "test_path": Setting("", PLACE, "Its path."),
    "mixture": Setting((), ROWS, "((name, path, weight), ...) instead of name and path."),
  }),
  *(Section(f"data.{name}", f"Settings of grpo_jax/data/{name}.py", {}) for name in DATA_SETS),
  Section("data", "Prompts", {
    "template": Setting("{question}\n", TEMPLATE, "The prompt, if chat is off."),
    "chat": Setting(False, SWITCH, "Render the prompt with the tokenizer's chat template."),
    "system": Setting("", TEXT, "System message of the chat."),
    "chat_arguments": Setting((), CHAT_ARGUMENTS,
      'Further values for the chat template, such as (("enable_thinking", False),).'),
    "steps": Setting("line", TEXT,
      "What ends a reasoning step: line, blank line, or a regular expression."),
    "prompts": Setting(32, Whole(1), "Prompts in a batch (P)."),
    "redraw": Setting(1.0, Number(0, 1, above=True),
      "Probability of keeping a prompt when it comes up again, if the last time all its samples "
      "were right or all were wrong. Below 1, eval.reward has to be one of rewards.functions."),
    "max_prompt_length": Setting(128, Whole(1), "Longest prompt, in tokens (Lp)."),
    "on_long": Setting("skip", Choice(("skip", "cut")),
      "Longer prompts are skipped, and counted, or cut to their last tokens."),
  }),
  Section("offline", "Offline data, and data of reward models", {
    "data": Setting("solutions", Choice(("solutions", "samples", "pairs", "steps")),
      "solutions (SFT), samples (RFT, distillation), pairs (DPO, reward models) or steps (process "
      "reward models)."),
    "prompts": Setting(2048, Whole(1), "Prompts that are sampled for, once."),
    "pairs": Setting("", PLACE,
      "File of pairs instead of samples: prompt, chosen and rejected on each line, as JSON."),
    "require": Setting("", TEXT,
      "Function of grpo_jax.rewards that must be above 0 for both samples of a pair, which must "
      "have stopped; empty: any samples (for a reward model: any that stopped)."),
    "held_out": Setting(0, Whole(0),
      "Prompts, besides those of offline.prompts, on which a reward model is only evaluated."),
    "steps": Setting("", PLACE,
      "File of labelled steps instead of samples, as PRM800K or Math-Shepherd have them."),
    "continuations": Setting(0, Whole(0),
      "Continuations of each step, which label it; 0: the rewards label the steps."),
    "labels": Setting("hard", Choice(("hard", "soft")),
      "Label of a step: 1 if any continuation is right (hard), or the share that is (soft)."),
    "teacher": Setting("", PLACE,
      "Folder or run that makes the samples; empty: the policy as it starts."),
  }),
  Section("lora", "Adapters (LoRA), which are trained instead of the weights", {
    "rank": Setting(0, Whole(0), "Rank of the adapters; 0: no adapters."),
    "alpha": Setting(32.0, Number(0, above=True), "Adapters are scaled by alpha / rank."),
    "modules": Setting(LORA_MODULES, MODULES, "Matrices that get an adapter."),
    "base_dtype": Setting("same", Choice(("same", "float32", "bfloat16")),
      "The weights under the adapters; same: as the folder has them."),
  }),
  Section("iterative", "Iterative training of a policy and its reward model", {
    "steps": Setting(20, Whole(1), "Steps of the policy in an iteration (M)."),
    "reward_model": Setting("", PLACE,
      "Start of the reward model: a folder or run; empty: the policy's start, with scores of 0."),
    "weight": Setting(1.0, Number(-1e6, 1e6), "Weight of its reward beside rewards.functions."),
    "labels": Setting("correct", TEXT,
      "The one of rewards.functions that decides which of two samples is better. If it scores "
      "steps, the reward model is a process reward model."),
    "reward_model_lr": Setting(1e-5, Number(0),
      "Constant learning rate; the rest of its optimizer is the policy's."),
    "pairs": Setting(32, Whole(1),
      "Pairs in a batch of the reward model; with labelled steps: prompts with all their samples."),
    "epochs": Setting(1, Whole(1), "Passes over the pairs of an iteration."),
    "replay": Setting(0.1, Number(0, 1, below=True),
      "Share of a batch that is from earlier iterations."),
    "kept_steps": Setting(100, Whole(0), "Steps before an iteration whose pairs may be replayed."),
  }),
  Section("sampler", "Sampler", {
    "group": Setting(8, Whole(1), "Completions of a prompt (G)."),
    "max_length": Setting(96, Whole(1), "Longest completion, in tokens with the stop token (L)."),
    "tensor": Setting(0, Whole(0),
      "Devices that share the weights that decode; 0: as many as mesh.tensor."),
    "slots": Setting(0, Whole(0), "Completions that are decoded at a time; 0: all."),
    "tries": Setting(1, Whole(1),
      "Above 1, dynamic sampling: the most batches sampled to get P groups whose rewards differ."),
    "temperature": Setting(1.0, TEMPERATURE, "Divides the logits, those of the learner, too."),
    "top_k": Setting(0, Whole(0), "Samples from the k most likely tokens; 0: off."),
    "top_p": Setting(1.0, Number(0, 1, above=True),
      "Samples from the most likely tokens that have this probability together; 1: off."),
    "min_p": Setting(0.0, SHARE,
      "Samples from tokens with this share of the highest probability, or more; 0: off."),
    "stop": Setting((), STOP, "Texts of stop tokens besides the tokenizer's end tokens."),
    "dtype": Setting("float32", DTYPE,
      "The weights that decode, their activations and matrix products."),
    "weights_dtype": Setting("same", Choice(("same", "int8")),
      "The layers' matrices when decoding; int8 has a scale for each output channel. The learner "
      "keeps its own, and mismatch_kl measures the difference."),
    "cache_dtype": Setting("float32", Choice(("float32", "bfloat16", "int8")),
      "Keys and values; int8 has a scale for each vector."),
  }),
  Section("rewards", "Rewards", {
    "functions": Setting(REWARDS, ROWS,
      '((name, function, weight), ...), each logged under its name: "module.function" of '
      'grpo_jax.rewards, or your own "package.module:function" or "file.py:function".'),
    "outcome_models": Setting((), ROWS,
      "((name, folder, weight), ...): reward models, folders or runs, that score the last token."),
    "process_models": Setting((), ROWS,
      "((name, folder, weight), ...): reward models that score the end of each step."),
    "on_error": Setting(0.0, Number(-1e30, 1e30),
      "Score where a reward raised, returned NaN or was too late, which is counted and logged."),
    # a timer would round 1e-9 to none
    "deadline": Setting(10.0, Number(1e-3, 86400, also=(0,)),
      "Seconds that a reward may take for a completion or a group; 0: any time."),
  }),
  Section("objective", "Objective", {
    "name": Setting("grpo", PATH,
      'Module of grpo_jax.objectives, or your own: "package.module" or "path/file.py".'),
  }),
  Section("learner", "Learner", {
    "lr": Setting(1e-6, Number(0), "Highest learning rate of the schedule."),
    "critic_lr": Setting(1e-5, Number(0), "That of the critic (ppo)."),
    "schedule": Setting("constant", Choice(("constant", "linear", "cosine")),
      "Constant after the warm-up, or a linear or cosine decay to zero."),
    "warmup": Setting(0, Whole(0), "Updates over which the learning rate rises from zero."),
    "b1": Setting(0.9, Number(0, 1, below=True), "AdamW: decay of the mean of gradients."),
    "b2": Setting(0.999, Number(0, 1, below=True), "AdamW: decay of the mean of their squares."),
    # 0 would divide 0 by 0, and 1e30 would change nothing
    "adam_eps": Setting(1e-8, Number(1e-30, 1), "AdamW: added to the denominator."),
    "weight_decay": Setting(0.0, Number(0), "AdamW: weight decay."),
    "clip_norm": Setting(1.0, Number(0), "Largest norm of the whole gradient; 0: not clipped."),
    "mu": Setting(1, Whole(1), "Passes over a rollout."),
    "stop_reached": Setting(0.0, SHARE,
      "Ends the passes once this share of tokens is at its clip bound; 0: off."),
    "stop_surrogate": Setting(0.0, Number(0),
      "Ends the passes once one improves the surrogate by less; 0: off."),
    "stop_kl": Setting(0.0, Number(0),
      "Ends the passes once the mean k3 between the old and the new policy is above; 0: off."),
    "minibatches": Setting(1, Whole(1), "Updates in a pass."),
    "microbatch": Setting(0, Whole(0),
      "Prompts whose activations are held at a time; 0: the whole minibatch."),
    "chunk": Setting(1024, Whole(1), "Tokens whose logits exist at a time, on a device."),
    "sizes": Setting(-1, Whole(0, also=(-1,)),
      "Programs that the learner may compile, and the sampler; fewer mean more padding. 0: any; "
      "-1: any on a CPU, otherwise 8."),
    "max_bad_steps": Setting(10, Whole(1), "Ends the run after so many non-finite steps in a row."),
  }),
  Section("mesh", "Mesh of devices", {
    "replica": Setting(1, AXIS,
      "Copies of the model: the slices of TPUs or a multiple; the other axes are inside a slice."),
    "fsdp": Setting(-1, AXIS, "Shards of parameters and prompts; -1: all devices that are left."),
    "group": Setting(1, AXIS, "Shards of the completions of a prompt."),
    "tensor": Setting(1, AXIS, "Shards of heads, MLP and vocabulary."),
    "rules": Setting(MESH_RULES, RULES, "Mesh axes of each logical axis, see sharding.Layout."),
  }),
  Section("eval", "Evaluation", {
    "every": Setting(0, Whole(0),
      "Steps; 0: only before and after, and after each iteration of the loop iterative."),
    "problems": Setting(512, Whole(0), "Problems of the test split."),
    "batch": Setting(256, Whole(1), "Prompts at a time."),
    "samples": Setting(8, Whole(0),
      "Samples for pass@k and maj@k, before and after; 0: only greedy."),
    "reward": Setting("math.answer_correct", PATH, "What counts as solved."),
    "arguments": Setting((), ROWS, 'Keyword arguments of it: (("name", value), ...).'),
  }),
  Section("checkpoint", "Checkpoints", {
    "every": Setting(50, Whole(1), "Steps between checkpoints."),
    "keep": Setting(2, Whole(1), "Checkpoints that are kept."),
    "export": Setting(True, SWITCH, "Write DIR/export, a Hugging Face folder, at the end."),
  }),
  Section("log", "Logs", {
    "every": Setting(1, Whole(1), "Steps between lines of metrics.jsonl."),
    "samples_every": Setting(20, Whole(0), "Steps between tables of samples on the console."),
    "samples": Setting(8, Whole(0), "Completions of each step in samples.jsonl."),
    "measure_every": Setting(10, Whole(0),
      "Steps between measurements of how an update moved its own samples; 0: off."),
    "tensorboard": Setting(True, SWITCH, "Write metrics for TensorBoard as well."),
    "bucket_seconds": Setting(60.0, Number(0),
      "Seconds between copies of the logs to a workdir in a bucket."),
  }),
  Section("profile", "Profiler", {
    "first_step": Setting(0, Whole(0), "First step to trace."),
    "steps": Setting(0, Whole(0), "Steps to trace into DIR/profile."),
  }),
  Section("", "Compiled programs", {
    "compilation_cache": Setting("workdir", PLACE,
      "Folder for compiled programs; workdir: DIR/compiled; empty: none."),
  }),
)
# fmt: on

# Every setting by its dotted name, as in --config.NAME=VALUE.
SETTINGS: dict[str, Setting] = {
  ".".join(filter(None, [section.name, name])): setting
  for section in SECTIONS
  for name, setting in section.settings.items()
}
KINDS: dict[str, Kind] = {name: setting.kind for name, setting in SETTINGS.items()}


def defaults() -> ConfigDict:
  """Returns the defaults of the table; the sections of data sets are still empty."""
  config = ConfigDict()
  for section in SECTIONS:
    holder = config
    for part in filter(None, section.name.split(".")):
      if part not in holder:
        holder[part] = ConfigDict()
      holder = holder[part]
    for name, setting in section.settings.items():
      holder[name] = setting.default
  return config


def expand(config: ConfigDict) -> None:
  """Replaces `~` by the home directory in settings that name a folder or file."""
  for name, kind in KINDS.items():
    if kind is PLACE:
      section, _, last = name.rpartition(".")
      holder = operator.attrgetter(section)(config) if section else config
      holder[last] = storage.expanded(name, holder[last])


def check(config: ConfigDict) -> None:
  """Refuses a config with a setting that is missing or out of range; it may have others besides.

  Of a folder only the name is checked, not whether it is there.
  """
  kinds.check(config, KINDS)
  for name, kind in KINDS.items():
    if kind is PLACE:
      storage.check(name, operator.attrgetter(name)(config))


def help_text() -> str:
  """Returns the settings as `--help` prints them."""
  lines = ["Settings of the config, given as --config.NAME=VALUE (docs/settings.md):"]
  for section in SECTIONS:
    lines += ["", f"{section.title}:"]
    for name, (default, kind, meaning) in section.settings.items():
      full = f"{section.name}.{name}" if section.name else name
      lines += [f"  {full}={default!r}  [{kind.brief}]", f"    {meaning}"]
  return "\n".join(lines)
