"""Lists every setting once: its name, its default, which values it may have, and its meaning.

The defaults of a config, the checks (sections.py), `--help` and docs/settings.md come from these
classes. A new setting is a line of one. A person writes a config, whose values may still be wrong;
`Settings` has those of one that was checked (setup/experiment.py). The settings of an objective or
a data set are in its own file, and setup/defaults.py joins them to these. jax is not imported here,
so that a bad value is refused at once.
"""

import dataclasses

from grpo_jax.config.forms import (
  AXIS,
  CHAT_ARGUMENTS,
  DTYPE,
  LORA_MODULES,
  MESH_RULES,
  MODULES,
  REWARDS,
  ROWS,
  RULES,
  SHARE,
  STOP,
  TEMPERATURE,
  TEMPLATE,
)
from grpo_jax.config.kinds import PATH, PLACE, SWITCH, TEXT, Choice, Number, Whole, many
from grpo_jax.config.table import setting


# One line a setting; if it does not fit, its meaning is on the next line.
# fmt: off
@dataclasses.dataclass(frozen=True)
class Model:
  """Decoder."""
  variant: str = setting("", PATH, "Row of models/variants.py that shapes a fresh model.")
  hub: str = setting("", TEXT, "Weights on the Hugging Face hub that messages recommend.")
  # at least all bytes and two special tokens; the largest vocabularies have 2**18
  vocab: int = setting(4096, Whole(258, 2**20), "Tokens of a tokenizer made by bpe.")
  layers: str = setting("scan", Choice(("scan", "unroll")),
    "Layers of the learner as a loop, which compiles fast, or unrolled.")
  remat: str = setting("none", Choice(("none", "block", "dots")),
    "What the backward pass computes again: nothing, whole layers, or all but matrix products.")
  dtype: str = setting("float32", DTYPE,
    "Activations and matrix products of the learner; its parameters stay float32.")

@dataclasses.dataclass(frozen=True)
class Data:
  """Data sets."""
  name: str = setting("arithmetic", PATH,
    'Module of grpo_jax.data, or your own: "package.module" or "path/file.py".')
  path: str = setting("", PLACE, "Folder (gsm8k), or file or folder (jsonl), of the data.")
  train: str = setting("train", PATH, "Split to train on.")
  test: str = setting("test", PATH, "Split to evaluate on.")
  shuffle: bool = setting(True, SWITCH, "Shuffle the data anew in each epoch.")
  test_name: str = setting("", PATH, "Data set to evaluate on, if it is another one.")
  test_path: str = setting("", PLACE, "Its path.")
  mixture: tuple = setting((), ROWS, "((name, path, weight), ...) instead of name and path.")
  template: str = setting("{question}\n", TEMPLATE, "The prompt; with chat, the user's message.")
  shots: int = setting(0, Whole(0, 1000), "Worked examples before each question (few-shot).")
  chat: bool = setting(False, SWITCH, "Render the prompt with the tokenizer's chat template.")
  system: str = setting("", TEXT, "System message of the chat.")
  chat_arguments: tuple = setting((), CHAT_ARGUMENTS,
    'Further values for the chat template, such as (("enable_thinking", False),).')
  steps: str = setting("line", TEXT,
    "What ends a reasoning step: line, blank line, or a regular expression.")
  prompts: int = setting(32, Whole(1), "Prompts in a batch (P).")
  redraw: float = setting(1.0, Number(0, 1, above=True),
    "Probability of keeping a prompt when it comes up again, if the last time all its samples "
    "were right or all were wrong. Below 1, eval.reward has to be one of rewards.functions.")
  max_prompt_length: int = setting(128, Whole(1), "Longest prompt, in tokens (Lp).")
  on_long: str = setting("skip", Choice(("skip", "cut")),
    "Longer prompts are skipped, and counted, or cut to their last tokens, without a begin token.")

@dataclasses.dataclass(frozen=True)
class Offline:
  """Offline data, and data of reward models."""
  data: str = setting("solutions", Choice(("solutions", "samples", "pairs", "steps")),
    "solutions (SFT), samples (RFT, distillation), pairs (DPO, reward models) or steps (process "
    "reward models).")
  prompts: int = setting(2048, Whole(1), "Prompts that are sampled for, once.")
  pairs: str = setting("", PLACE,
    "File of pairs instead of samples: prompt, chosen and rejected on each line, as JSON.")
  require: str = setting("", TEXT,
    "Function of grpo_jax.rewards that must be above 0 for both samples of a pair, which must "
    "have stopped; empty: any samples (for a reward model: any that stopped).")
  held_out: int = setting(0, Whole(0),
    "Prompts, besides those of offline.prompts, on which a reward model is only evaluated.")
  steps: str = setting("", PLACE,
    "File of labelled steps instead of samples, as PRM800K or Math-Shepherd have them.")
  continuations: int = setting(0, Whole(0),
    "Continuations of each step, which label it; 0: the rewards label the steps.")
  labels: str = setting("hard", Choice(("hard", "soft")),
    "Label of a step: 1 if any continuation is right (hard), or the share that is (soft).")
  teacher: str = setting("", PLACE,
    "Folder or run that makes the samples; empty: the policy as it starts.")

@dataclasses.dataclass(frozen=True)
class Lora:
  """Adapters (LoRA), which are trained instead of the weights."""
  rank: int = setting(0, Whole(0), "Rank of the adapters; 0: no adapters.")
  alpha: float = setting(32.0, Number(0, above=True), "Adapters are scaled by alpha / rank.")
  modules: tuple = setting(LORA_MODULES, MODULES, "Matrices that get an adapter.")
  base_dtype: str = setting("same", Choice(("same", "float32", "bfloat16")),
    "The weights under the adapters; same: as the folder has them.")

@dataclasses.dataclass(frozen=True)
class Iterative:
  """Iterative training of a policy and its reward model."""
  steps: int = setting(20, Whole(1), "Steps of the policy in an iteration (M).")
  reward_model: str = setting("", PLACE,
    "Start of the reward model: a folder or run; empty: the policy's start, with scores of 0.")
  weight: float = setting(1.0, Number(-1e6, 1e6), "Weight of its reward beside rewards.functions.")
  labels: str = setting("correct", TEXT,
    "The one of rewards.functions that decides which of two samples is better. If it scores "
    "steps, the reward model is a process reward model.")
  reward_model_lr: float = setting(1e-5, Number(0),
    "Constant learning rate; the rest of its optimizer is the policy's.")
  pairs: int = setting(32, Whole(1),
    "Pairs in a batch of the reward model; with labelled steps: prompts with all their samples.")
  epochs: int = setting(1, Whole(1), "Passes over the pairs of an iteration.")
  replay: float = setting(0.1, Number(0, 1, below=True),
    "Share of a batch that is from earlier iterations.")
  kept_steps: int = setting(100, Whole(0), "Steps before an iteration whose pairs may be replayed.")

@dataclasses.dataclass(frozen=True)
class Sampler:
  """Sampler."""
  group: int = setting(8, Whole(1), "Completions of a prompt (G).")
  max_length: int = setting(96, Whole(1), "Longest completion, in tokens with the stop token (L).")
  tensor: int = setting(0, Whole(0),
    "Devices that share the weights that decode; 0: as many as mesh.tensor.")
  slots: int = setting(0, Whole(0), "Completions that are decoded at a time; 0: all.")
  tries: int = setting(1, Whole(1),
    "Above 1, dynamic sampling: the most batches sampled to get P groups whose rewards differ.")
  carry: int = setting(0, Whole(0),
    "Groups, besides those of data.prompts, that are sampled at a time. A step ends without them "
    "and the next goes on with them (carried rollouts); 0: off.")
  max_age: int = setting(2, Whole(1), "Most training steps that a carried group may last.")
  temperature: float = setting(1.0, TEMPERATURE,
    "Divides the logits; those of the learner too, in the loops online and iterative.")
  top_k: int = setting(0, Whole(0), "Samples from the k most likely tokens; 0: off.")
  top_p: float = setting(1.0, Number(0, 1, above=True),
    "Samples from the most likely tokens that have this probability together; 1: off.")
  min_p: float = setting(0.0, SHARE,
    "Samples from tokens with this share of the highest probability, or more; 0: off.")
  stop: tuple = setting((), STOP,
    "Texts that end a completion, of any length, and are cut from it; besides the end tokens.")
  dtype: str = setting("float32", DTYPE,
    "The weights that decode, their activations and matrix products.")
  weights_dtype: str = setting("same", Choice(("same", "int8")),
    "The layers' matrices when decoding; int8 has a scale for each output channel. The learner "
    "keeps its own, and mismatch_kl measures the difference.")
  cache_dtype: str = setting("float32", Choice(("float32", "bfloat16", "int8")),
    "Keys and values; int8 has a scale for each vector.")

@dataclasses.dataclass(frozen=True)
class Rewards:
  """Rewards."""
  functions: tuple = setting(REWARDS, ROWS,
    '((name, function, weight), ...), each logged under its name: "module.function" of '
    'grpo_jax.rewards, or your own "package.module:function" or "file.py:function".')
  outcome_models: tuple = setting((), ROWS,
    "((name, folder, weight), ...): reward models, folders or runs, that score the last token.")
  process_models: tuple = setting((), ROWS,
    "((name, folder, weight), ...): reward models that score the end of each step.")
  on_error: float = setting(0.0, Number(-1e12, 1e12),
    "Score where a reward raised, returned NaN or was too late, which is counted and logged.")
  # a timer would round 1e-9 to none
  deadline: float = setting(10.0, Number(1e-3, 86400, also=(0,)),
    "Seconds that a reward may take for a completion or a group, and an environment for a turn; 0: "
    "any time.")
  workers: int = setting(0, Whole(0, 256),
    "Processes that score completions as they end, while others are sampled; 0: the run scores "
    "them itself, after sampling.")

@dataclasses.dataclass(frozen=True)
class Environment:
  """Environment; it answers the turns of an episode (docs/environments.md)."""
  name: str = setting("", PATH,
    'Module of grpo_jax.environments, or your own: "package.module" or "path/file.py"; empty: a '
    "completion is one turn.")
  arguments: tuple = setting((), ROWS, 'Keyword arguments of it: (("name", value), ...).')
  weight: float = setting(1.0, Number(-1e6, 1e6), "Weight of its rewards in the sum.")
  turns: int = setting(8, Whole(1), "Most turns of an episode.")
  turn_length: int = setting(0, Whole(0),
    "Most tokens that are sampled in a turn; 0: as many as sampler.max_length leaves.")
  workers: int = setting(2, Whole(1, 256), "Processes that answer turns, at the same time.")
  discount: float = setting(1.0, SHARE, "The reward of turn k counts discount^(k - 1) times.")
  role: str = setting("user", Choice(("user", "tool", "system")),
    "Whose message an observation is in a chat template.")

@dataclasses.dataclass(frozen=True)
class Objective:
  """Objective."""
  name: str = setting("grpo", PATH,
    'Module of grpo_jax.objectives, or your own: "package.module" or "path/file.py".')

@dataclasses.dataclass(frozen=True)
class Reference:
  """Reference or teacher; its weights come from ref_from, or from the policy's start."""
  ema: float = setting(0.0, SHARE,
    "After each step it becomes reference + ema (policy - reference); 0: it never moves.")
  prompt: str = setting("", TEXT,
    "What a teacher is asked, with {question} and {solution}, {success} or {feedback}, see "
    "loops/teacher_prompts.py; empty: what the policy is asked.")
  max_prompt_length: int = setting(1024, Whole(1),
    "Longest such prompt, in tokens; a completion with a longer one is not learned from.")
  success: float = setting(0.5, Number(-1e30, 1e30),
    "Sum of rewards above which a completion is a {success}.")

@dataclasses.dataclass(frozen=True)
class Learner:
  """Learner."""
  lr: float = setting(1e-6, Number(0), "Highest learning rate of the schedule.")
  critic_lr: float = setting(1e-5, Number(0), "That of the critic (ppo).")
  schedule: str = setting("constant", Choice(("constant", "linear", "cosine")),
    "Constant after the warm-up, or a linear or cosine decay to zero.")
  warmup: int = setting(0, Whole(0), "Updates over which the learning rate rises from zero.")
  optimizer: str = setting("adamw", Choice(("adamw", "muon")),
    "muon moves the matrices of the layers by orthogonal directions, and AdamW moves the rest.")
  b1: float = setting(0.9, Number(0, 1, below=True), "Decay of the mean of gradients.")
  b2: float = setting(0.999, Number(0, 1, below=True), "AdamW: decay of the mean of their squares.")
  # 0 would divide 0 by 0, and 1e30 would change nothing
  adam_eps: float = setting(1e-8, Number(1e-30, 1), "AdamW: added to the denominator.")
  weight_decay: float = setting(0.0, Number(0), "Weight decay, of matrices alone.")
  clip_norm: float = setting(1.0, Number(0), "Largest norm of the whole gradient; 0: not clipped.")
  mu: int = setting(1, Whole(1), "Passes over a rollout.")
  entropy_target: float = setting(0.0, Number(0),
    "Entropy in nats below which the weight of the entropy rises from objective.entropy_bonus, see "
    "learning/entropy_control.py; 0: the weight stays.")
  entropy_step: float = setting(1e-4, Number(0, above=True),
    "By how much that weight rises or falls in a step.")
  entropy_max: float = setting(5e-3, Number(0), "The largest that weight becomes.")
  stop_reached: float = setting(0.0, SHARE,
    "Ends the passes once this share of tokens is at its clip bound; 0: off.")
  stop_surrogate: float = setting(0.0, Number(0),
    "Ends the passes once one improves the surrogate by less; 0: off.")
  stop_kl: float = setting(0.0, Number(0),
    "Ends the passes once the mean k3 between the old and the new policy is above; 0: off.")
  minibatches: int = setting(1, Whole(1), "Updates in a pass.")
  microbatch: int = setting(0, Whole(0),
    "Most prompts whose activations are held at a time; 0: the whole minibatch.")
  chunk: int = setting(1024, Whole(1), "Tokens whose logits exist at a time, on a device.")
  sizes: int = setting(-1, Whole(0, also=(-1,)),
    "Programs that the learner may compile, and the sampler; fewer mean more padding. 0: any; "
    "-1: any on a CPU, otherwise 8.")
  max_bad_steps: int = setting(10, Whole(1),
    "Updates in a row that are not finite, which end the run.")

@dataclasses.dataclass(frozen=True)
class Mesh:
  """Mesh of devices."""
  replica: int = setting(1, AXIS,
    "Copies of the model: the slices of TPUs or a multiple; the other axes are inside a slice.")
  fsdp: int = setting(-1, AXIS, "Shards of parameters and prompts; -1: all devices that are left.")
  group: int = setting(1, AXIS, "Shards of the completions of a prompt.")
  tensor: int = setting(1, AXIS, "Shards of heads, MLP and vocabulary.")
  rules: tuple = setting(MESH_RULES, RULES, "Mesh axes of each logical axis, see sharding.Layout.")
  cpu_devices: int = setting(1, Whole(1),
    "Most devices that experiments.run makes of a CPU, where they divide the batches and XLA_FLAGS "
    "does not say how many. A small model samples sooner on two: most of its operations use one "
    "core.")

@dataclasses.dataclass(frozen=True)
class Eval:
  """Evaluation."""
  every: int = setting(0, Whole(0),
    "Steps; 0: only before and after, and after each iteration of the loop iterative.")
  problems: int = setting(512, Whole(0), "Problems of the test split.")
  batch: int = setting(256, Whole(1), "Prompts at a time.")
  samples: int = setting(8, Whole(0),
    "Samples for pass@k and maj@k, before and after; 0: only greedy.")
  reward: str = setting("math.answer_correct", PATH, "What counts as solved.")
  arguments: tuple = setting((), ROWS, 'Keyword arguments of it: (("name", value), ...).')

@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """Checkpoints."""
  every: int = setting(50, Whole(1), "Steps between checkpoints.")
  keep: int = setting(2, Whole(1), "Checkpoints that are kept.")
  export: bool = setting(True, SWITCH, "Write DIR/export, a Hugging Face folder, at the end.")

@dataclasses.dataclass(frozen=True)
class Log:
  """Logs."""
  every: int = setting(1, Whole(1), "Steps between lines of metrics.jsonl.")
  samples_every: int = setting(20, Whole(0), "Steps between tables of samples on the console.")
  samples: int = setting(1, Whole(0),
    "Groups of each step whose completions are all in samples.jsonl: first those with a failed "
    "reward, then those whose rewards differ.")
  measure_every: int = setting(10, Whole(0),
    "Steps between measurements of how an update moved its own samples; 0: off.")
  writers: tuple = setting(("tensorboard",), many(PATH),
    'What gets the metrics besides metrics.jsonl: "tensorboard", "wandb", "trackio", or '
    'your own, "package.module" or "path/file.py", with a class Writer.')
  bucket_seconds: float = setting(60.0, Number(0),
    "Seconds between copies of the logs to a workdir in a bucket.")

@dataclasses.dataclass(frozen=True)
class Profile:
  """Profiler."""
  first_step: int = setting(0, Whole(0), "First step to trace.")
  steps: int = setting(0, Whole(0), "Steps to trace into DIR/profile.")

@dataclasses.dataclass(frozen=True)
class Settings:
  """A run."""
  seed: int = setting(0, Whole(0, 2**32 - 1), "Seed of fresh parameters, data order and sampling.")
  loop: str = setting("online", PATH,
    "What a run does: a module of grpo_jax.loops (online, offline, iterative, reward_model, "
    "process_reward_model), an import path or a file FILE.py.")
  steps: int = setting(200, Whole(1), "Rollouts (online) or batches (offline) to train on.")
  init_from: str = setting("", PLACE,
    "Start of the policy: a Hugging Face folder or the workdir of a run; empty: fresh weights.")
  ref_from: str = setting("", PLACE,
    "Reference or teacher, of objectives with one: a folder or run; empty: the policy's start. A "
    "teacher may have another shape.")
  tokenizer: str = setting("", PLACE,
    "Folder with a tokenizer.json; bpe or words: made from the training data; empty: that of "
    "init_from.")
  compilation_cache: str = setting("workdir", PLACE,
    "Folder for compiled programs; workdir: DIR/compiled; empty: none.")
  model: Model = dataclasses.field(default_factory=Model)
  data: Data = dataclasses.field(default_factory=Data)
  offline: Offline = dataclasses.field(default_factory=Offline)
  lora: Lora = dataclasses.field(default_factory=Lora)
  iterative: Iterative = dataclasses.field(default_factory=Iterative)
  sampler: Sampler = dataclasses.field(default_factory=Sampler)
  rewards: Rewards = dataclasses.field(default_factory=Rewards)
  environment: Environment = dataclasses.field(default_factory=Environment)
  reference: Reference = dataclasses.field(default_factory=Reference)
  learner: Learner = dataclasses.field(default_factory=Learner)
  mesh: Mesh = dataclasses.field(default_factory=Mesh)
  eval: Eval = dataclasses.field(default_factory=Eval)
  checkpoint: Checkpoint = dataclasses.field(default_factory=Checkpoint)
  log: Log = dataclasses.field(default_factory=Log)
  profile: Profile = dataclasses.field(default_factory=Profile)
# fmt: on
