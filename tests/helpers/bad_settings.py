"""Settings and command lines that cannot be, as data: tests/config/bad_settings_test.py tries them
all.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from experiments import presets
from grpo_jax.config import forms, kinds, sections
from grpo_jax.setup import registry

NAN, INF = float("nan"), float("inf")
HALF = "\ud800"  # half of a character
HUGE = 10**30


class Bad(NamedTuple):
  """A setting with a value that is to be refused."""

  name: str
  value: Any
  says: str = ""  # what the message holds beside the setting and its value
  objective: str = "grpo"  # as --config=experiments/arithmetic.py:objective=... has it
  also: dict[str, Any] = {}  # other settings, fine by themselves


class Accepted(NamedTuple):
  """A setting with an odd value that is taken on purpose."""

  name: str
  value: Any
  reason: str


OBJECTIVES = ("grpo", "gspo", "cispo", "rpg", "ppo", "rft", "dpo", "sft", "target_prob", "opsd")


def of_row(name: str, row: kinds.Kind) -> Iterator[Bad]:
  """Yields values that a row of the table refuses: below, above, not finite, of another kind."""
  wrong: tuple[Any, ...] = (None, {"a": 1})
  if isinstance(row, kinds.Whole):
    wrong += (min((row.least, *row.also)) - 1, row.most + 1, HUGE, 10**5000, 1.5, "1", True, NAN)
  elif isinstance(row, kinds.Number):
    wrong += (NAN, INF, -INF, 1e300, "1")
    wrong += () if row.least == -kinds.LARGEST else (row.least - 1 - abs(row.least),)
    wrong += () if row.most == kinds.LARGEST else (row.most + 1 + abs(row.most),)
    wrong += (row.least,) if row.above else ()
    wrong += (row.most,) if row.below else ()
  elif isinstance(row, kinds.Choice):
    wrong += ("", "nonsense", row.names[0].upper(), f"{row.names[0]} ", HALF, "a\0b", 1, True)
  elif row is kinds.SWITCH:
    wrong += ("yes", 1, 0.0)
  elif row is kinds.TEXT or row is forms.TEMPLATE:
    wrong += (HALF, "a\0b", 1, ("a",))
  elif row in (kinds.PATH, kinds.PLACE):
    wrong += (HALF, "a\0b", 1, ("a",), "x" * 300, "a/" * 3000)
    wrong += ("s3://a/b", "gs:/a/b", "gs://") if row is kinds.PLACE else ()
  else:
    wrong += ("a", 1, (1,), (NAN,), ((HALF,),), ("",))
  for value in wrong:
    yield Bad(name, value)


def of_objective(name: str) -> Iterator[Bad]:
  """Yields values of another kind, and numbers that are not finite, for every setting of an
  objective.
  """
  section = registry.objective(presets.PRESETS[name][0]).settings()
  for setting in section:
    default = section[setting]
    if setting == "max_length":
      continue
    wrong: tuple[Any, ...] = (None, {"a": 1})
    if isinstance(default, bool):
      wrong += ("yes", 1)
    elif isinstance(default, int | float):
      wrong += (NAN, INF, -INF, 1e300, "1")
      wrong += () if setting == "threshold" else (-1.0,)
    elif isinstance(default, str):
      wrong += ("", "nonsense", HALF, "a\0b", 3)
    else:
      wrong += (1, (NAN,), ("a",), (1.0, 2.0))
    for value in wrong:
      yield Bad(f"objective.{setting}", value, objective=name)


PATTERN = "pattern.pattern_correct"
FUNCTIONS, MIXTURE, RULES = "rewards.functions", "data.mixture", "mesh.rules"

BY_HAND = (
  # names of what is not there
  Bad(
    "loop",
    "nonsense",
    "grpo_jax.loops has iterative, offline, online, process_reward_model, reward_model",
  ),
  Bad("loop", "", "grpo_jax.loops has"),
  Bad("loop", "imports", "grpo_jax.loops has"),
  Bad("loop", "../online", "grpo_jax.loops has"),
  Bad("loop", "learner", "its function train is not there"),
  Bad("loop", "gone.py", "no such file"),
  *(
    Bad("objective.name", name, "grpo_jax.objectives has cispo, clip_cov")
    for name in ("common", "advantages", "os.path", "../x", "", "a..b", ".", "grpo ", "grop", "x:y")
  ),
  Bad("objective.name", "none.py", "no such file"),
  Bad("objective.name", "ppo", "use --config=FILE:objective=ppo"),
  *(
    Bad("data.name", name, "grpo_jax.data has arithmetic, ")
    for name in ("loader", "os.path", "../x", "", "a..b", ".", "word_problems", "arithmetics")
  ),
  Bad("data.name", "none.py", "no such file"),
  Bad("data.test_name", "nonsense", "grpo_jax.data has"),
  Bad("data.test_name", "a\nb", "grpo_jax.data has"),
  *(
    Bad("eval.reward", name, says)
    for name, says in (
      ("", "give"),
      ("math", "give"),
      ("math.", "has no function"),
      (".math", "give"),
      (":", "not the name of a module"),
      ("math.wrong", "it has answer_correct, well_formed"),
      ("maths.answer_correct", "grpo_jax.rewards has boxed, choice, exact"),
      ("none.py:f", "no such file"),
      ("os.path:sep", "has no function"),
      ("../x:f", "not the name of a module"),
      ("math.MARK", "has no function"),
    )
  ),
  Bad("eval.arguments", (("x", 1),), "cannot be called so"),
  Bad(
    "eval.arguments",
    (("pattern", "("),),
    "give a regular expression",
    also={"eval.reward": PATTERN},
  ),
  Bad("eval.arguments", (("pattern", "abc"),), "has no group", also={"eval.reward": PATTERN}),
  Bad("eval.arguments", (("pattern", 1),), "is no text", also={"eval.reward": PATTERN}),
  *(
    Bad(FUNCTIONS, (("a", PATTERN, 1.0, {"pattern": pattern}),), says)
    for pattern, says in (
      ("(", "give a regular"),
      ("abc", "has no group"),
      (1, "is no text"),
      ("(a{9999999999})", "give"),
    )
  ),
  Bad(FUNCTIONS, (("a", PATTERN, 1.0),), "cannot be called so"),
  Bad(
    "model.variant", "nonsense", "one of qwen3_0.6b", also={"init_from": "", "tokenizer": "words"}
  ),
  # rewards
  *(
    Bad(FUNCTIONS, (entry,), "give (name, function, weight)")
    for entry in (
      1,
      "abc",
      (),
      ("a", "math.answer_correct"),
      ("a", "math.answer_correct", "1"),
      ("a", "math.answer_correct", True),
      ("a", "math.answer_correct", None),
      (1, "math.answer_correct", 1.0),
      ("a", 1, 1.0),
      ("a", "math.answer_correct", 1.0, 1),
      ("a", "math.answer_correct", 1.0, {}, {}),
    )
  ),
  *(Bad(FUNCTIONS, (("a", "math.answer_correct", w),), "finite") for w in (NAN, INF, 1e400, -INF)),
  Bad(FUNCTIONS, (("a", "math.answer_correct", 1e7),), "use a weight from"),
  Bad(FUNCTIONS, (("a", "math.answer_correct", HUGE),), "whole numbers"),
  Bad(FUNCTIONS, (), "give at least one"),
  Bad(
    FUNCTIONS,
    (("a", "math.answer_correct", 1), ("a", "math.answer_correct", 1)),
    "each its own name",
  ),
  Bad(FUNCTIONS, (("a", "math.answer_correct", 1.0, {"x": 1}),), "cannot be called so"),
  Bad(FUNCTIONS, (("a", "length.overlong", 1.0),), "cannot be called so"),
  Bad(FUNCTIONS, (("a", "length.overlong", 1.0, {"max_length": NAN, "buffer": 1}),), "finite"),
  Bad(FUNCTIONS, (("a", "math.number", 1.0),), "cannot be called so"),
  Bad(FUNCTIONS, (("a", "none.py:f", 1.0),), "no such file"),
  Bad(FUNCTIONS, (("a", f"{'x' * 300}.py:f", 1.0),), "give (name"),
  Bad(FUNCTIONS, (("a", "math.answer_correct\0", 1.0),), "NUL"),
  Bad("objective.reward_weights", (1.0, 2.0), "which does not read it"),
  # data
  *(
    Bad(MIXTURE, (entry,), "give (name, path, weight)")
    for entry in (
      1,
      "abc",
      (),
      ("arithmetic", 1.0),
      ("arithmetic", "", "1"),
      ("arithmetic", "", 1.0, {}),
    )
  ),
  *(Bad(MIXTURE, (("arithmetic", "", w),), "use positive numbers") for w in (0, -1, 0.0, -0.5)),
  *(Bad(MIXTURE, (("arithmetic", "", w),), "finite") for w in (NAN, INF)),
  Bad(MIXTURE, (("arithmetic", "", 1), ("arithmetic", "", 1e-9)), "use positive numbers"),
  Bad(MIXTURE, (("nonsense", "", 1.0),), "grpo_jax.data has"),
  Bad("offline.require", "math.number", "cannot be called so"),
  Bad("offline.require", "os:remove", "is not written in Python"),
  Bad("data.template", "no place", "{question}"),
  Bad("data.template", "", "{question}"),
  Bad("data.template", "{question}{question}", "{question} in it, once"),
  Bad("data.template", "Q: {question} A: {question}", "{question} in it, once"),
  Bad("rewards.deadline", 1e-9, "at least 0.001"),
  Bad("rewards.deadline", 9e-4, "at least 0.001"),
  Bad("steps", 10**18, "at most 2147483647"),
  Bad("model.vocab", 10**9, "from 258 to 1048576"),
  Bad("data.path", "nowhere", "reads no files"),
  Bad("data.path", "nowhere", "no such file or folder", also={"data.name": "jsonl"}),
  Bad("data.path", "", "is empty", also={"data.name": "jsonl"}),
  Bad("data.path", "nowhere", "grade-school-math", also={"data.name": "gsm8k"}),
  *(
    Bad(f"data.{split}", name, "arithmetic has")
    for split in ("train", "test")
    for name in ("", "dev", "../test")
  ),
  *(
    Bad(f"data.arithmetic.{name}", value)
    for name in ("seed", "size", "max_number", "max_factor", "min_steps", "max_steps")
    for value in (-1, HUGE, None, "1", 1.5, True)
  ),
  Bad("data.arithmetic.size", 0),
  Bad("data.arithmetic.max_number", 1),
  Bad("data.arithmetic.max_factor", 1),
  Bad("data.arithmetic.min_steps", 5),
  Bad("data.arithmetic.families", ("loan",), "families are"),
  Bad("data.arithmetic.families", (1,), "families are"),
  Bad("data.arithmetic.families", "gain"),
  Bad("data.arithmetic.words", 1),
  Bad("data.arithmetic", 3, "a section"),
  Bad("data.jsonl.question", 3, also={"data.name": "jsonl"}),
  Bad("data.gsm8k.annotations", "no", also={"data.name": "gsm8k"}),
  # the mesh
  *(
    Bad(RULES, rules)
    for rules in (
      (1, 2),
      (("embed",),),
      (("embed", "fsdp"),),
      (("embed", ("data",)),),
      (("embed", ("fsdp", "fsdp")),),
      (("embed", ()), ("embed", ())),
      ((1, ("fsdp",)),),
      (("embd", ("fsdp",)),),
    )
  ),
  Bad(RULES, (("prompt", ("fsdp",)), ("sample", ("fsdp",))), "axes of one array"),
  Bad("mesh.group", 3, "needs 3 devices", also={"mesh.fsdp": 1}),
  Bad("mesh.group", -1, "more than one -1"),
  # settings against each other
  Bad("learner.minibatches", 7, "use a divisor of 32"),
  Bad("learner.microbatch", 5, "a minibatch has 32 prompts"),
  Bad("offline.data", "pairs", "use loop='online'", also={"loop": "offline"}),
  Bad("data.steps", "(", "is no regular expression"),
  Bad("data.steps", "x*", "matches the empty text"),
  Bad("sampler.stop", ("",)),
  Bad("sampler.stop", ("a", 1)),
  # numbers of objectives
  Bad("objective.ddof", 5, "0, 1"),
  Bad("objective.clip_delta", 1.1, "1 + clip_high"),
  Bad("objective.label_smoothing", 0.9, "from 0 to 0.5", objective="dpo"),
  Bad("objective.beta", 0.0, "a positive number", objective="dpo"),
  Bad("objective.gamma", 1.5, "from 0 to 1", objective="ppo"),
  Bad("objective.lam", 1.5, "from 0 to 1", objective="ppo"),
  Bad("objective.mismatch_high", -1.0, "at least 0"),
  Bad("objective.keep_low", -1.0, "at least 0"),
  Bad("objective.mismatch_low", 3.0, "mismatch_high=2.0"),
  Bad("objective.keep", "token", "leaves nothing out"),
  Bad(
    "objective.max_length",
    None,
    "aggregation='constant'",
    also={"objective.aggregation": "constant"},
  ),
  Bad(
    "objective.reward_weights",
    ("a",),
    "use a tuple of numbers",
    also={"objective.advantage": "gdpo"},
  ),
  Bad(
    "objective.reward_weights",
    (1.0, 2.0),
    "one for each of rewards",
    also={"objective.advantage": "gdpo"},
  ),
  Bad(
    FUNCTIONS,
    (("seen", "math.well_formed", 0.0),),
    "'seen' has 0",
    also={"objective.advantage": "gdpo"},
  ),
  Bad("objective.advantage", "none.py:f", "no such file"),
  Bad("objective.advantage", "os.path:join", "is of Python's own library"),
  # an environment
  Bad("environment.name", "nonsense", "grpo_jax.environments has calculator, guess"),
  Bad("environment.name", "none.py", "no such file"),
  Bad("environment.name", "base", "has no function step"),
  Bad("environment.arguments", (("tries", 5),), "missing", also={"environment.name": "guess"}),
  Bad(
    "environment.arguments", (("tries", 5),), "argument", also={"environment.name": "calculator"}
  ),
  Bad("environment.arguments", (("guesses", 5),), "there is no environment.name"),
  Bad("environment.turns", 3, "there is no environment.name; use 8"),
  Bad("environment.role", "tool", "text without a role", also={"environment.name": "calculator"}),
  Bad("data.hidden_number.largest", 1, "from 2 to", also={"data.name": "hidden_number"}),
  Bad("data.path", "games", "reads no files", also={"data.name": "hidden_number"}),
  # carried rollouts
  Bad("sampler.carry", 128, "groups, and from those that were carried first; use at most"),
  Bad("sampler.carry", 8, "samples nothing that an update could interrupt; use 0", objective="sft"),
  Bad("sampler.max_age", 3, "with sampler.carry=0 nothing is carried; use 2"),
  # settings that this run would not read
  Bad(
    "objective.jensen_shannon_beta",
    0.3,
    "with divergence='forward': only jensen_shannon mixes",
    objective="opsd",
    also={"objective.divergence": "forward"},
  ),
  Bad(
    "reference.max_prompt_length",
    99,
    "reference.prompt='': the teacher is asked what the policy is; use 1024",
    objective="opsd",
    also={"reference.prompt": "", "ref_from": "x"},
  ),
  Bad(
    "reference.success",
    1.0,
    "is read only with {success} in reference.prompt; use 0.5",
    objective="opsd",
  ),
  Bad("learner.critic_lr", 1e-3, "has no critic; use 1e-05"),
  Bad("learner.entropy_max", 0.1, "with learner.entropy_target=0 the weight stays; use 0.005"),
  Bad("ref_from", "runs/1", "reads no reference from a folder; use ''"),
  Bad("ref_from", "runs/1", "reads no reference", objective="sft"),
  Bad("offline.held_out", 7, "is not of loop='online'; use 0"),
  Bad("offline.held_out", 7, "is for reward models", objective="dpo"),
  Bad("offline.continuations", 3, "is not of loop='online'"),
  Bad("offline.pairs", "pairs.jsonl", "is not of loop='online'"),
  Bad("offline.steps", "steps.jsonl", "is not of loop='online'"),
  Bad("offline.labels", "soft", "is not of loop='online'"),
  Bad("offline.require", "math.answer_correct", "is not of loop='online'"),
  Bad("offline.data", "samples", "is not of loop='online'"),
  Bad("offline.teacher", "runs/1", "loop='online' draws no samples of a teacher"),
  Bad(
    "offline.teacher",
    "runs/1",
    "draws no samples of a teacher with offline.data='solutions'",
    objective="sft",
  ),
  Bad("iterative.weight", 5.0, "is not of loop='online'"),
  Bad("iterative.weight", 5.0, "is not of loop='offline'", objective="dpo"),
  Bad("iterative.reward_model", "runs/1", "is not of loop='online'"),
  Bad("data.system", "You are", "there is no system message"),
  Bad("data.chat_arguments", (("enable_thinking", False),), "no chat template is asked"),
  # numbers of odd kinds, and text in place of them
  Bad("seed", -0.0, "a whole number"),
  Bad("seed", 1.0, "a whole number"),
  Bad("steps", "\u0663", "a whole number"),
  Bad("steps", "3", "a whole number"),
  Bad("learner.lr", "\u0661e-3", "a finite number"),
  Bad("learner.lr", (1e-3,), "a finite number"),
  Bad("learner.lr", 1 + 0j, "a finite number"),
  Bad("learner.lr", 1e39, "in float32"),
  Bad("learner.adam_eps", 1e30, "at most 1"),
  Bad("sampler.temperature", 0, "at least 0.001"),
  Bad("sampler.temperature", -0.0, "at least 0.001"),
  Bad("sampler.top_p", 0, "above 0"),
  Bad("data.redraw", 0, "above 0"),
  Bad("objective.ddof", True, "a whole number"),
  Bad("objective.ddof", 1.0, "a whole number"),
  Bad("objective.mask_truncated", 1, "True or False"),
  Bad("rewards.deadline", -1e-9, "at least 0.001"),
  # sizes that cannot be
  Bad("data.prompts", 2 * 10**9, "of memory; use a smaller data.prompts"),
  Bad("sampler.group", 2 * 10**9, "of memory; use a smaller sampler.group"),
  Bad("sampler.max_length", 2 * 10**9, "of memory; use a smaller sampler.max_length"),
  Bad("eval.samples", 2 * 10**9, "of memory; use a smaller eval.samples"),
  Bad("learner.minibatches", 64, "use a divisor of 32"),
  Bad("learner.microbatch", 12, "use a divisor, or 0 for the whole minibatch"),
  Bad("rewards.outcome_models", (("a", "", 1.0),), "give the folder of a reward model"),
  Bad("rewards.process_models", (("a", "", 1.0),), "give the folder of a reward model"),
  # rewards that are none, twice, or without effect
  Bad(FUNCTIONS, (("a", "os:system", 1.0),), "is not written in Python"),
  Bad(FUNCTIONS, (("a", "builtins:print", 1.0),), "is not written in Python"),
  Bad(FUNCTIONS, (("a", "shutil:rmtree", 1.0),), "is of Python's own library"),
  Bad(FUNCTIONS, ((("a", "math.answer_correct", 1.0),),), "give (name, function, weight)"),
  Bad(FUNCTIONS, (("seen", "math.well_formed", 0.0),), "nothing would be learned"),
  Bad(FUNCTIONS, (("seen", "math.well_formed", -0.0),), "nothing would be learned"),
  Bad(FUNCTIONS, (("seen", "math.well_formed", 0.0),), "nothing would be learned", objective="ppo"),
  Bad(FUNCTIONS, (("a", "math.answer_correct", 1.0, {"example": 1}),), "cannot be called so"),
  Bad(
    FUNCTIONS,
    (("a", "length.overlong", 1.0, {"max_length": 96, "buffer": 100}),),
    "use 1 to max_length=96",
  ),
  Bad(
    FUNCTIONS,
    (("a", "length.overlong", 1.0, {"max_length": -1, "buffer": 0}),),
    "use 1 to max_length=-1",
  ),
  Bad(
    FUNCTIONS,
    (("a", "length.overlong", 1.0, {"max_length": "a", "buffer": 1}),),
    "use a whole number",
  ),
  Bad(
    FUNCTIONS,
    (("a", "length.overlong", 1.0, {"max_length": True, "buffer": 1}),),
    "use a whole number",
  ),
  Bad(
    "objective.reward_weights", (0.0,), "one of them not 0", also={"objective.advantage": "gdpo"}
  ),
  Bad(
    "objective.reward_weights",
    (1e38,),
    "to 1e+06, at least one",
    also={"objective.advantage": "gdpo"},
  ),
  Bad("objective.advantage_arguments", (("strength", 2.0),), "takes no 'strength'"),
  Bad(
    "objective.advantage_arguments",
    (("eps", 2.0),),
    "eps is a setting; use --config.objective.eps=2.0",
  ),
  Bad("objective.advantage_arguments", ("factor", 2.0), "use (('name', value), ...)"),
  Bad(
    "objective.advantage_arguments",
    (("factor", None),),
    "factor is None; use a number",
    also={"objective.advantage": "objective_cases:times"},
  ),
  Bad("objective.advantage", "builtins:print", "is not written in Python"),
  Bad("objective.advantage", "numpy:sum", "it should take rollouts"),
  # evaluation
  Bad("eval.reward", "os:remove", "is not written in Python"),
  Bad("eval.reward", "shutil:rmtree", "is of Python's own library"),
  Bad("eval.reward", "pathlib:Path", "is a class"),
  Bad(
    "eval.arguments",
    (("pattern", "(a)"), ("pattern", "(b)")),
    "each name once",
    also={"eval.reward": PATTERN},
  ),
  Bad("eval.arguments", (("example", 1),), "cannot be called so"),
  Bad("eval.arguments", ((1, 2),), "cannot be called so"),
  Bad("data.test", "train", "is the split that is trained on"),
  Bad("data.train", "test", "data.test='test': is the split that is trained on"),
  # text
  Bad("data.template", "{{question}}", "in single braces"),
  Bad("data.template", "{Question}", "{question} in it"),
  Bad("data.template", "{question", "{question} in it"),
  Bad("data.steps", "line ", "would be a pattern of these letters; use 'line'"),
  Bad("data.steps", "Blank  Line", "would be a pattern of these letters"),
  Bad("data.steps", "", "matches the empty text"),
  Bad("data.steps", "^", "matches the empty text"),
  # sections that are none
  *(
    Bad(name, value, "a section")
    for name in (
      "model",
      "data",
      "sampler",
      "rewards",
      "objective",
      "learner",
      "mesh",
      "eval",
      "log",
      "profile",
    )
    for value in (None, 3)
  ),
  Bad("data.chat_arguments", (("messages", 1),), "none of messages"),
  Bad("data.chat_arguments", (("a", 1), ("a", 2)), "each name once"),
  Bad("data.chat_arguments", (("a", ("b",)),), "True, False"),
  # settings of one's own
  Bad("mine.number", NAN, "finite"),
  Bad("mine.number", HUGE, "whole numbers"),
  Bad("mine.text", HALF, "UTF-8"),
  Bad("mine.nested", ((1.0, (INF,)),), "finite"),
)

BAD = (
  *(bad for name, row in sections.KINDS.items() for bad in of_row(name, row)),
  *(bad for name in OBJECTIVES for bad in of_objective(name)),
  *BY_HAND,
)

ACCEPTED = (
  Accepted("learner.lr", 0.0, "measures without learning"),
  Accepted("learner.lr", 10.0, "it may diverge, and learner.max_bad_steps ends it then"),
  Accepted("learner.b1", 0.0, "no momentum"),
  Accepted("learner.b2", 0.0, "the sign of the gradient"),
  Accepted("learner.lr", -0.0, "is 0"),
  Accepted("learner.chunk", 2**31 - 1, "all tokens at a time"),
  Accepted("learner.clip_norm", 1e-30, "Adam divides by the size of the gradient again"),
  Accepted("learner.schedule", "linear", "with a warm-up of the default length"),
  Accepted(
    "model.vocab", 5000, "an experiment that makes a tokenizer may be given one in its place"
  ),
  Accepted("offline.prompts", 5, "a comparison gives it to all of its arms"),
  Accepted("iterative.steps", 3, "a config file may have the numbers of several loops"),
  Accepted("learner.stop_kl", 0.1, "a sweep over learner.mu has 1 in it"),
  Accepted("lora.alpha", 64.0, "a sweep over lora.rank has 0 in it"),
  Accepted("lora.modules", ("q",), "a sweep over lora.rank has 0 in it"),
  Accepted("objective.kl_estimator", "k1", "a sweep over beta has 0 in it"),
  Accepted("objective.mismatch_high", 5.0, "a sweep over mismatch has 'none' in it"),
  Accepted("objective.clip_low", 0.0, "no token with A < 0 is driven down"),
  Accepted("data.redraw", 1e-12, "what is settled does not come again, until all of the data is"),
  Accepted(
    "data.mixture", (("arithmetic", "", 1.0), ("arithmetic", "", 1.0)), "twice, in two orders"
  ),
  Accepted("data.arithmetic.size", 1, "a problem to overfit"),
  Accepted("eval.every", 10**6, "before and after alone"),
  Accepted("eval.reward", "math.well_formed", "any question with an answer may be asked"),
  Accepted("rewards.deadline", 0.001, "a reward that only looks at the text"),
  Accepted("rewards.deadline", 0, "any time"),
  Accepted("sampler.max_length", 1, "answers of one token"),
  Accepted("sampler.slots", 1, "one completion after the other"),
  Accepted(
    "sampler.temperature", 0.001, "nearly greedy: the run says how many groups teach nothing"
  ),
  Accepted("sampler.top_k", 1, "greedy: the run says how many groups teach nothing"),
  Accepted("sampler.stop", ("\n", "\n"), "the same twice"),
  Accepted("learner.microbatch", 64, "more than a minibatch has: all of it at a time"),
  Accepted("log.every", 10**6, "the metrics of no step"),
  Accepted("learner.warmup", 10**6, "longer than the run: the rate only rises"),
  Accepted("seed", 2**32 - 1, "the largest key"),
  Accepted("steps", 2**31 - 1, "a run that a person stops"),
  Accepted("sampler.top_k", 10**6, "more than the vocabulary: off"),
  Accepted("sampler.min_p", 1.0, "the most probable token alone"),
  Accepted("sampler.slots", 10**6, "more than there are completions: all of them"),
  Accepted("rewards.on_error", -5.0, "a punishment"),
  Accepted(FUNCTIONS, (("long", "math.well_formed", -1.0),), "a weight may punish"),
  Accepted(
    FUNCTIONS,
    (("seen", "math.well_formed", 0.0), ("correct", "math.answer_correct", 1.0)),
    "logged and not learned from",
  ),
  Accepted(
    FUNCTIONS,
    (("a", "math.answer_correct", 1.0), ("b", "math.well_formed", -1.0)),
    "one against the other",
  ),
  Accepted(FUNCTIONS, (["a", "math.answer_correct", 1],), "a list is as good as a tuple"),
  Accepted("objective.beta", 100.0, "holds the policy where it is"),
  Accepted("objective.clip_low", 1.5, "no lower bound, since ratios are above 0"),
  Accepted("objective.eps", 0.0, "groups of equal rewards have advantage 0 without it"),
  Accepted("eval.problems", 0, "no evaluation"),
  Accepted("eval.problems", 10**9, "all that there are"),
  Accepted("eval.samples", 0, "greedy only"),
  Accepted("log.samples", 0, "no samples.jsonl"),
  Accepted("log.samples", 10**9, "all groups"),
  Accepted("checkpoint.every", 10**9, "only at the end, and when it is stopped"),
  Accepted("profile.first_step", 10**6, "after the last step: nothing is recorded"),
  Accepted("data.system", "", "a chat without a system message"),
  Accepted(RULES, (("prompt", ("fsdp",)),), "other axes are whole on each device"),
  Accepted("mine.anything", None, "a setting without a row is its owner's"),
)
