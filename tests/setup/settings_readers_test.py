"""Which files read a setting."""

from grpo_jax.setup import settings_readers

NAMES = ("steps", "learner.lr", "learner.mu", "sampler.top_p")


def read_by(name: str, **sources: str) -> list[str]:
  """Returns the readers of a setting; a source is named `loops__run` for "loops/run.py"."""
  files = {f"{file.replace('__', '/')}.py": text for file, text in sources.items()}
  return settings_readers.readers(NAMES, files)[name]


def test_a_read_from_the_config():
  for text in ("config.sampler.top_p", "experiment.sampler.top_p", "self.config.sampler.top_p"):
    assert read_by("sampler.top_p", loops__run=f"def f(self, config): return {text}") == [
      "loops/run.py"
    ]
  assert read_by("steps", loops__run="print(config.steps)") == ["loops/run.py"]


def test_what_is_no_read():
  for text in (
    "config.sampler.top_p = 1",
    "decoder.sampler.top_p",
    "config.learner.top_p",
    "top_p",
  ):
    assert read_by("sampler.top_p", loops__run=text) == []


def test_a_section_in_a_variable():
  assert read_by("learner.lr", a="def f():\n  c = config.learner\n  return lambda: c.lr") == [
    "a.py"
  ]
  pair = "s, c = config.sampler, config.learner\nc.lr"
  assert read_by("learner.lr", a=pair) == ["a.py"] and read_by("sampler.top_p", a=pair) == []
  apart = "def f():\n  c = config.learner\ndef g(c):\n  c.lr"
  assert read_by("learner.lr", a=apart) == []


def test_a_section_in_an_attribute():
  text = "class A:\n  def f(self):\n    self.cfg = config.learner\n  def g(self):\n    self.cfg.lr"
  assert read_by("learner.lr", a=text) == ["a.py"]


def test_a_section_that_is_an_argument():
  loop = "from grpo_jax.learning import optimizer\noptimizer.schedule(config.learner)"
  reader = "def schedule(cfg):\n  return scheduled(cfg.mu, cfg=cfg)\ndef scheduled(lr, cfg): cfg.lr"
  sources = {"loops__learner": loop, "learning__optimizer": reader}
  assert read_by("learner.lr", **sources) == ["learning/optimizer.py"]
  assert read_by("learner.mu", **sources) == ["learning/optimizer.py"]
  sources["loops__learner"] = loop.replace("grpo_jax.learning", "elsewhere")
  assert read_by("learner.lr", **sources) == []


def test_a_section_that_is_given_to_a_class():
  loop = "from grpo_jax.learning.learn import Setup\nSetup(1, cfg=config.learner)"
  fields = "class Setup:\n  rate: int\n  cfg: object\n  def f(self): return self.cfg.lr"
  made = "class Setup:\n  def __init__(self, rate, cfg): self.cfg = cfg\n  def f(self): self.cfg.lr"
  for text in (fields, made):
    assert read_by("learner.lr", loop=loop, learning__learn=text) == ["learning/learn.py"]


def test_an_annotation():
  assert read_by("learner.lr", a="def f(cfg: settings.Learner): return cfg.lr") == ["a.py"]
  assert read_by("learner.lr", a="class A:\n  c: settings.Learner\n  def f(self): self.c.lr") == [
    "a.py"
  ]
  assert read_by("learner.lr", a="def f(learner: Learner): return learner.lr") == []


def test_keys():
  for text in ("c['lr']", "c.get('lr')", "getattr(c, 'lr')", "c[name]", "getattr(c, name)"):
    assert read_by("learner.lr", a=f"c = config.learner\n{text}") == ["a.py"]
  assert read_by("learner.lr", a="c = config.learner\nc['mu']") == []
  both = {"a": "c = config.learner\nc[name]", "b": "config.learner.lr"}
  assert read_by("learner.lr", **both) == ["b.py"]


def test_the_most_telling_file_comes_first():
  read = "config.sampler.top_p\n"
  sources = ("setup__checks", "evaluation__policy", "loops__b", "loops__a", "sampler")
  assert read_by("sampler.top_p", **{file: read for file in sources}, loops__c=2 * read) == [
    "sampler.py",
    "loops/c.py",
    "loops/a.py",
    "loops/b.py",
    "evaluation/policy.py",
    "setup/checks.py",
  ]


def test_the_files_of_grpo_jax():
  first = {
    "data.redraw": "loops/collect.py",
    "iterative.replay": "loops/teaching.py",
    "checkpoint.keep": "loops/run.py",
    "sampler.top_p": "sampling/sampler.py",
    "learner.lr": "learning/optimizer.py",
    "mesh.fsdp": "distributed/sharding.py",
    "eval.problems": "evaluation/evaluator.py",
  }
  found = settings_readers.readers(first, settings_readers.read_sources())
  assert {name: files[0] for name, files in found.items()} == first
  assert found["data.redraw"][1] == "setup/checks.py"
