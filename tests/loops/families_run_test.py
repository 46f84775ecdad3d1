"""GRPO on a Hugging Face folder of each family: chat prompts, two steps, and DIR/export as
transformers reads it.
"""

import json
import pathlib
from typing import Any, NamedTuple

import chat_templates
import families
import jax
import numpy as np
import pytest
import tiny
from small_models import SMALL

from grpo_jax.learning import forward
from grpo_jax.loops import online
from grpo_jax.packing.plan import Packing
from grpo_jax.sampling import rollouts
from grpo_jax.setup import build, defaults, weights
from grpo_jax.setup.resolve import resolve
from grpo_jax.types import Rollouts

ROWS = {"gemma3_text": "test_gemma3"}  # of small_models.py, where its name is not the family's
# What of the policy is trained, and the settings that say so.
TRAINED = {"full": {}, "lora": {"lora.rank": 2}}
APART = ("gemma2",)  # adapters of the others are long
PARTS = (
  *("gemma", "llama", "mistral", "qwen2"),  # of what they have nothing is theirs alone
  *("gemma3_text", "olmo2", "phi3", "smollm3"),
)  # whole runs of these are long
CASES = [
  pytest.param(
    (family, how),
    marks=pytest.mark.long if family in PARTS or how == "lora" and family not in APART else (),
  )
  for family in sorted(chat_templates.CHATS)
  for how in TRAINED
]


class Trained(NamedTuple):
  """A run of one family."""

  family: str
  source: pathlib.Path  # the folder that it began with
  workdir: pathlib.Path
  model: build.Model
  questions: list[str]
  batches: list[Rollouts]  # of its two steps, numpy


def parity(example, completion):
  return sum(completion.tokens) % 5 / 4


def make_folder(family: str, folder: pathlib.Path) -> None:
  """A folder as transformers writes it, of random weights, with a tokenizer of the family's kind."""
  tokens = chat_templates.save(family, folder)
  config = SMALL[ROWS.get(family, f"test_{family}")]
  made = families.model(config.__class__(**{**vars(config), "vocab": tokens}), family)
  stops = json.loads((folder / "generation_config.json").read_text())
  made.config.eos_token_id = stops["eos_token_id"]
  made.config.bos_token_id = None
  made.save_pretrained(folder)
  (folder / "generation_config.json").write_text(json.dumps(stops))


def settings(source: pathlib.Path, how: str) -> Any:
  c = defaults.get_config()
  c.init_from, c.steps = str(source), 2
  c.data.chat, c.data.prompts, c.data.max_prompt_length, c.data.arithmetic.size = True, 2, 256, 8
  c.sampler.group, c.sampler.max_length = 4, 12
  c.rewards.functions = (("parity", f"{__file__}:parity", 1.0),)
  c.learner.lr, c.eval.problems, c.compilation_cache = 1e-2, 0, ""
  c.log.writers, c.log.measure_every, c.log.samples_every = (), 0, 0
  c.update_from_flattened_dict(TRAINED[how])
  return c


@pytest.fixture(scope="session", params=CASES, ids="-".join)
def trained(request, tmp_path_factory):
  """Trains a family on one device, and keeps what it sampled."""
  family, how = request.param
  source, workdir = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("run")
  make_folder(family, source)
  config, questions, batches, models = settings(source, how), [], [], []
  collect, make = online.collect, build.model

  def keep(*args):
    collected = collect(*args)
    batch = collected.batch
    questions.extend(example.question for example in batch.examples)
    batches.append(rollouts.to_host(batch.rollouts))
    return collected

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(online, "collect", keep)
    patch.setattr(
      build, "model", lambda given: models.append(make(given, jax.devices()[:1])) or models[-1]
    )
    online.train(resolve(config), str(workdir))
  return Trained(family, source, workdir, models[-1], questions, batches)


def their_logprobs(folder: pathlib.Path, r: Rollouts) -> np.ndarray:
  """Log-probs of the sampled tokens as transformers has them, [P, G, L]; 0 on padding."""
  torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
  model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, attn_implementation="eager"
  ).eval()
  assert model.dtype == torch.float32
  found = np.zeros(r.tokens.shape, np.float32)
  for p, g in np.ndindex(*r.lengths.shape):
    start, n = int(r.prompts.lengths[p]), int(r.lengths[p, g])
    ids = torch.tensor([[*r.prompts.tokens[p, :start], *r.tokens[p, g, :n]]])
    with torch.no_grad():
      logp = model(ids).logits[0, start - 1 : start + n - 1].log_softmax(-1)
    found[p, g, :n] = logp.gather(1, ids[0, start:, None])[:, 0].numpy()
  return found


def our_logprobs(model: build.Model, params: Any, r: Rollouts) -> np.ndarray:
  """The same, as the learner has them."""

  @jax.jit
  def run(params, r):
    return forward.logprobs(
      model.decoder, params, r.prompts, r.tokens, r.lengths, Packing(), temperature=1.0, chunk=64
    )

  return np.where(tiny.real(r), run(params, r)[0], 0)


@pytest.mark.slow
def test_a_run_and_its_export_are_those_of_transformers(trained):
  """The policy that samples first is the folder's, the export is the learner's, on what the run
  itself sampled.
  """
  transformers = pytest.importorskip("transformers")
  first, last = trained.batches
  before = their_logprobs(trained.source, first)
  np.testing.assert_allclose(
    np.where(tiny.real(first), first.sampler_logprobs, 0), before, atol=1e-3, rtol=0
  )
  export = trained.workdir / "export"
  params = weights.restore(str(trained.workdir), trained.model.decoder)
  after = their_logprobs(export, last)
  np.testing.assert_allclose(our_logprobs(trained.model, params, last), after, atol=1e-3, rtol=0)
  # it has learned something
  assert np.abs(after - their_logprobs(trained.source, last)).max() > 1e-2
  assert np.abs(after).sum() > 0

  config = json.loads((export / "config.json").read_text())
  began = json.loads((trained.source / "config.json").read_text())
  assert (config["model_type"], config["architectures"]) == (trained.family, began["architectures"])
  theirs = transformers.AutoTokenizer.from_pretrained(export)
  ids = theirs.apply_chat_template(
    [{"role": "user", "content": f"{trained.questions[0]}\n"}],
    add_generation_prompt=True,
    tokenize=True,
    return_dict=False,
    date_string="26 Jul 2024",
    date="26 July 2024",
  )
  assert first.prompts.tokens[0, : first.prompts.lengths[0]].tolist() == ids
  stops = json.loads((export / "generation_config.json").read_text())["eos_token_id"]
  assert set(np.atleast_1d(stops)) == set(trained.model.stop)
