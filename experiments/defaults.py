"""Every setting of an online run, with its default: experiments start from this and change a few
lines.

All defaults live here, but for those of an objective or a data set, which live in its own file.
grpo_jax/config/ranges.py has a row for each of the others with what it may be. The config is locked
once built, so that a misspelt `--config.learner.lrr=1` is an error. A section is passed to the code
that it names and to nothing above it.
"""

from ml_collections import ConfigDict

from grpo_jax.setup import registry


def objective(name: str, c: ConfigDict) -> ConfigDict:
  """Returns the `objective` section of an objective: its name, and its settings with their
  defaults.

  Args:
    name: as `c.objective.name` is to be.
    c: the config; `max_length`, where the objective reads it, follows its sampler.max_length.

  Raises:
    SettingError: there is no such objective, or its settings are none.
  """
  section = ConfigDict({"name": name})
  section.update(registry.objective_defaults(name))
  if "max_length" in section:
    section.max_length = c.sampler.get_ref("max_length")
  return section


def get_config() -> ConfigDict:
  """Returns the defaults. It is long because it is one list, to be read from top to bottom or
  searched.
  """
  c = ConfigDict()
  c.seed = 0  # of fresh parameters, the order of the data, and sampling
  # Module of grpo_jax.loops: online, offline, reward_model, process_reward_model, iterative.
  c.loop = "online"
  c.steps = 200  # rollouts (online) or batches (offline)

  # Where the policy comes from: a Hugging Face folder or the workdir of another run. Empty: a fresh
  # model.
  c.init_from = ""
  # reference (or teacher) of objectives that have one: a folder or run; empty: as the policy
  # started
  c.ref_from = ""
  # Folder with a tokenizer.json; empty: the one in init_from; bpe or words: made from the training
  # data.
  c.tokenizer = ""
  c.model = ConfigDict()
  c.model.variant = ""  # a row of models/variants.py; only for a fresh model
  # name on the Hugging Face hub of the weights that init_from should hold; only for messages
  c.model.hub = ""
  c.model.vocab = 4096  # tokens of a tokenizer made by bpe
  c.model.layers = "scan"  # scan (compiles fast) or unroll, in the learner
  # none, block (recompute a layer in the backward pass) or dots (keep matrix products)
  c.model.remat = "none"
  c.model.dtype = "float32"  # of activations and matrix products; parameters are float32 masters

  c.data = ConfigDict()
  # module of grpo_jax.data, or your own: "package.module", "path/file.py"
  c.data.name = "arithmetic"
  c.data.path = ""  # folder (gsm8k), file or folder (jsonl)
  c.data.train = "train"  # split names
  c.data.test = "test"
  c.data.shuffle = True  # anew in each epoch
  c.data.test_name = ""  # data set to evaluate on, where it is another one
  c.data.test_path = ""
  c.data.mixture = ()  # ((name, path, weight), ...) instead of name and path
  for name in (
    "arithmetic",
    "gsm8k",
    "jsonl",
    "reasoning_gym",
  ):  # the settings of each data set are in its file
    c.data[name] = registry.data(name).settings()
  c.data.template = "{question}\n"  # the prompt, where chat is off
  c.data.chat = False  # render the prompt by the tokenizer's chat template
  c.data.system = ""  # system message of the chat
  # (("name", value), ...): what the chat template may ask beside the messages, such as
  # (("enable_thinking", False),).
  c.data.chat_arguments = ()
  # What ends a reasoning step of a completion: line, blank line, or a regular expression
  # (tokenizer/steps.py).
  c.data.steps = "line"
  c.data.prompts = 32  # prompts in a batch (P)
  # Chance with which a prompt is taken in its turn whose samples were all right, or all wrong, the
  # last time; below 1 one of rewards.functions is eval.reward, which says what is right.
  c.data.redraw = 1.0
  c.data.max_prompt_length = 128  # tokens (Lp)
  # a longer prompt is: skip (left out, counted) or cut (its last tokens kept)
  c.data.on_long = "skip"

  c.offline = ConfigDict()  # loops/offline.py, reward_model.py, process_reward_model.py
  # solutions (SFT), samples (RFT, distillation), pairs (DPO, reward models), steps (process reward
  # models)
  c.offline.data = "solutions"
  c.offline.prompts = 2048  # prompts to sample for, once
  # file of pairs in place of samples: prompt, chosen and rejected on each line, as JSON
  c.offline.pairs = ""
  # Function of grpo_jax.rewards that must be above 0 for both samples of a pair, which then must
  # have stopped; empty: any samples (for a reward model: any that stopped).
  c.offline.require = ""
  # reward models: prompts that are only evaluated on, beside those of offline.prompts
  c.offline.held_out = 0
  # file of labelled steps in place of samples, as PRM800K or Math-Shepherd (data/step_labels.py)
  c.offline.steps = ""
  # of each step of a sample, which label it; 0: the rewards label the steps
  c.offline.continuations = 0
  # of its continuations: hard (1 where any is right) or soft (the share that is)
  c.offline.labels = "hard"
  # folder or run whose samples they are; empty: those of the policy as it starts
  c.offline.teacher = ""

  c.lora = ConfigDict()  # adapters (models/lora.py), which are trained in place of the weights
  c.lora.rank = 0  # 0: the weights are trained
  c.lora.alpha = 32.0  # what the adapters add is multiplied by alpha / rank
  c.lora.modules = ("q", "k", "v", "o", "gate", "up", "down")  # that have one
  # of the weights under them: same (as the folder has them), float32 or bfloat16
  c.lora.base_dtype = "same"

  c.iterative = ConfigDict()  # loops/iterative.py
  c.iterative.steps = 20  # of the policy in an iteration (M)
  # to begin with: a folder or run; empty: the policy's start, with scores of 0
  c.iterative.reward_model = ""
  c.iterative.weight = 1.0  # of its reward, beside those of rewards.functions
  # The one of rewards.functions that says which of two samples is the better, or, where it returns
  # values of steps, which steps are right: the reward model is then a process reward model.
  c.iterative.labels = "correct"
  c.iterative.reward_model_lr = 1e-5  # constant; the rest of its optimizer is as the policy's
  # in a batch of the reward model; with labels of steps: prompts, with all of their samples
  c.iterative.pairs = 32
  c.iterative.epochs = 1  # over the pairs of an iteration
  c.iterative.replay = 0.1  # share of a batch that is of earlier iterations
  c.iterative.kept_steps = 100  # steps before an iteration whose pairs may be replayed

  c.sampler = ConfigDict()
  c.sampler.group = 8  # completions of a prompt (G)
  c.sampler.max_length = 96  # tokens of a completion, stop token included (L)
  # devices that share the weights that decode (mesh.tensor of the sampler); 0: mesh.tensor
  c.sampler.tensor = 0
  c.sampler.slots = 0  # completions decoded at a time; 0: all of them
  # above 1: dynamic sampling, so many batches at most until P groups have rewards that differ
  c.sampler.tries = 1
  c.sampler.temperature = 1.0  # the learner's log-probs, too
  c.sampler.top_k = 0  # 0: off
  c.sampler.top_p = 1.0  # 1: off
  c.sampler.min_p = 0.0  # 0: off
  c.sampler.stop = ()  # extra stop tokens, as text, beside the tokenizer's end tokens
  c.sampler.dtype = "float32"  # of the weights that decode, of activations and matrix products
  # Of the layers' matrices: same (as sampler.dtype) or int8, with a scale for each output channel.
  # Evaluation and all else that samples the policy decodes with them, too; the learner has its own,
  # and mismatch_kl says how far off.
  c.sampler.weights_dtype = "same"
  # of keys and values; bfloat16; int8, with a scale for each vector
  c.sampler.cache_dtype = "float32"

  # ((name, function, weight), ...): a function of grpo_jax.rewards ("math.answer_correct"), or a
  # user's own by import path ("package.module:function" or "file.py:function"). Each is logged
  # under its name.
  c.rewards = ConfigDict()
  c.rewards.functions = (("correct", "math.answer_correct", 1.0),)
  # ((name, folder, weight), ...): reward models, Hugging Face folders or runs, of the policy's
  # tokenizer.
  c.rewards.outcome_models = ()  # asked after the last token
  c.rewards.process_models = ()  # asked after each step
  # score of a reward that raised, returned NaN or was too late; it is counted and logged
  c.rewards.on_error = 0.0
  # seconds that a reward may take for a completion, or for a group; 0: any time
  c.rewards.deadline = 10.0

  # A module of grpo_jax.objectives, or a user's own: "package.module", "path/file.py". Its file
  # holds its settings.
  c.objective = objective("grpo", c)

  c.learner = ConfigDict()
  c.learner.lr = 1e-6  # the highest of its schedule
  c.learner.critic_lr = 1e-5  # ppo
  c.learner.schedule = "constant"  # constant, linear or cosine decay to zero, after the warm-up
  c.learner.warmup = 0  # updates
  c.learner.b1 = 0.9  # of AdamW, as the next three
  c.learner.b2 = 0.999
  c.learner.adam_eps = 1e-8
  c.learner.weight_decay = 0.0
  c.learner.clip_norm = 1.0  # of the global gradient; 0: off
  c.learner.mu = 1  # passes over one rollout
  # Rules that end the passes before mu (learn.py); 0: off.
  # fraction of tokens with an advantage that have come to their clip bound
  c.learner.stop_reached = 0.0
  c.learner.stop_surrogate = 0.0  # least improvement of the surrogate from one pass to the next
  c.learner.stop_kl = 0.0  # mean k3 between the old and the new policy
  c.learner.minibatches = 1  # updates in a pass
  c.learner.microbatch = 0  # prompts whose activations are held at a time; 0: the whole minibatch
  c.learner.chunk = 1024  # tokens whose logits exist at a time, on one device
  # Programs that the learner may have, and the sampler: with few, more is padded. 0: any; -1: any
  # on a CPU, else 8.
  c.learner.sizes = -1
  c.learner.max_bad_steps = 10  # end the run after so many non-finite steps in a row

  c.mesh = ConfigDict()
  # several slices of TPUs: as many as there are, or a multiple; the rest lies inside a slice
  c.mesh.replica = 1
  c.mesh.fsdp = -1  # -1: the devices that are left
  c.mesh.group = 1
  c.mesh.tensor = 1
  # Logical axis -> mesh axes (sharding.py).
  c.mesh.rules = (
    ("prompt", ("replica", "fsdp")),
    ("sample", ("group",)),
    ("embed", ("fsdp", "group")),
    ("heads", ("tensor",)),
    ("kv_heads", ("tensor",)),
    ("mlp", ("tensor",)),
    ("vocab", ("tensor",)),
  )

  c.eval = ConfigDict()
  # steps; 0: only before and after, and after each iteration of the loop iterative
  c.eval.every = 0
  c.eval.problems = 512  # of the test split
  c.eval.batch = 256  # prompts at a time
  c.eval.samples = 8  # for pass@k and maj@k, before and after; 0: greedy only
  c.eval.reward = "math.answer_correct"  # what counts as solved
  c.eval.arguments = ()  # keyword arguments of it: (("name", value), ...)

  c.checkpoint = ConfigDict()
  c.checkpoint.every = 50  # steps
  c.checkpoint.keep = 2
  c.checkpoint.export = True  # write DIR/export, a Hugging Face folder, at the end

  c.log = ConfigDict()
  c.log.every = 1  # steps between lines of metrics.jsonl
  c.log.samples_every = 20  # steps between tables of samples on the console
  c.log.samples = 8  # completions written to samples.jsonl every step
  # steps between measurements of how the update moved its own samples; 0: off
  c.log.measure_every = 10
  c.log.tensorboard = True
  # from one copy of the logs to the next, where the workdir is in a bucket
  c.log.bucket_seconds = 60.0

  c.profile = ConfigDict()
  c.profile.first_step = 0
  c.profile.steps = 0  # trace so many steps into DIR/profile
  # folder for compiled programs; workdir: DIR/compiled; empty: none
  c.compilation_cache = "workdir"
  return c
