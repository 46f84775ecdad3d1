"""A pretrained model against transformers: log-probs, greedy tokens, adapters, exports, int8, a mesh.

REAL_MODEL_DIR names its folder, which launch/real_model.sh makes: a base model, on 64 test problems
of GSM8K with their worked solutions. Random weights of a tiny shape hide what these show: logits of
30, a vocabulary of 262,144, rows of attention with one key/value head, tokens that begin and end.
"""

import functools
import gc
import os
import pathlib
from typing import NamedTuple

import jax
import numpy as np
import pytest
import safetensors.numpy
import tiny

from grpo_jax.data import gsm8k
from grpo_jax.learning import forward
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hf import tensors
from grpo_jax.models.hf.config import read_config
from grpo_jax.models.lora import A, B, Lora, join, split
from grpo_jax.packing.plan import Packing
from grpo_jax.sampling import rollouts as host
from grpo_jax.sampling import sampler
from grpo_jax.tokenizer import reading
from grpo_jax.types import Prompts

FOLDER = os.environ.get("REAL_MODEL_DIR", "")
GSM8K = os.environ.get("GSM8K_DIR", "")
pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(not FOLDER, reason="REAL_MODEL_DIR is not set: launch/real_model.sh DIR"),
  pytest.mark.skipif(
    not GSM8K, reason="GSM8K_DIR is not set: the folder of train.jsonl, test.jsonl"
  ),
]

FEW, SOLUTIONS = 8, 64
COUNTS = pytest.mark.parametrize("count", [FEW, pytest.param(SOLUTIONS, marks=pytest.mark.long)])
PROMPT, COMPLETION = 96, 112  # most tokens of a problem and of its solution
ROWS = 8  # solutions that go through the learner's forward pass at a time
CHUNK = 256  # tokens whose logits exist at a time: 268 MB in float32
GREEDY = {"tokens": 32, "slots": 8}
TEMPLATE = {
  "template": "Question: {question}\nAnswer:",
  "chat": False,
  "system": "",
  "arguments": (),
}
MESH = (1, 2, 1, 2)  # (replica, fsdp, group, tensor)


class Texts(NamedTuple):
  """Problems with their solutions, and the arrays of both."""

  questions: list[str]
  solutions: list[str]
  prompts: Prompts  # [N, Lp]
  tokens: np.ndarray  # [N, 1, L]
  lengths: np.ndarray  # [N, 1]

  @property
  def real(self) -> np.ndarray:
    """Returns the mask of tokens, `[N, 1, L]`."""
    return np.arange(self.tokens.shape[2]) < self.lengths[..., None]

  def part(self, rows: slice) -> tuple[Prompts, np.ndarray, np.ndarray]:
    """Returns the arrays of some problems."""
    prompts = Prompts(self.prompts.tokens[rows], self.prompts.lengths[rows])
    return prompts, self.tokens[rows], self.lengths[rows]


def arrays(questions, solutions, prompts, completions):
  """Texts and their ids, lists of lists, as Texts."""
  return Texts(
    list(questions),
    list(solutions),
    Prompts(padded(prompts), np.array([*map(len, prompts)], np.int32)),
    padded(completions)[:, None],
    np.array([[*map(len, completions)]], np.int32).T,
  )


def padded(rows):
  """Lists of ids as `[N, longest]`."""
  width = max(map(len, rows))
  return np.array([[*row, *[0] * (width - len(row))] for row in rows], np.int32)


@pytest.fixture(scope="module")
def texts():
  """The first problems of the test split that are not too long."""
  tokenizer = reading.load(FOLDER)
  chosen = []
  for example in gsm8k.source("test", GSM8K, gsm8k.settings()):
    prompt = tokenizer.render(example.question, **TEMPLATE)
    completion = tokenizer.encode(" " + example.solution)
    if len(prompt) <= PROMPT and len(completion) <= COMPLETION:
      chosen.append((example.question, example.solution, prompt, completion))
  return arrays(*zip(*chosen[:SOLUTIONS]))


@pytest.fixture(scope="module")
def long_texts(texts):
  """Two solutions behind other solved problems, of more tokens than a layer's window."""
  tokenizer = reading.load(FOLDER)
  window = max(spec.window for spec in read_config(FOLDER).attention)
  prompts = []
  for row in range(2):
    solved = zip(texts.questions[2 + row :: 2], texts.solutions[2 + row :: 2])
    shots, ids = "", []
    while len(ids) < window + 2 * COMPLETION:
      question, solution = next(solved)
      shots += TEMPLATE["template"].format(question=question) + f" {solution}\n\n"
      template = TEMPLATE | {"template": shots + TEMPLATE["template"]}
      ids = tokenizer.render(texts.questions[row], **template)
    prompts.append(ids)
  completions = [list(texts.tokens[row, 0, : texts.lengths[row, 0]]) for row in range(2)]
  return arrays(texts.questions[:2], texts.solutions[:2], prompts, completions)


def decoder(mesh=tiny.ONE, **changes):
  return Decoder(read_config(FOLDER), tiny.layout(mesh), **changes)


@pytest.fixture(scope="module")
def params():
  """The weights in float32, on one device."""
  yield tensors.load(FOLDER, decoder())
  gc.collect()


def log_probs(d, params, texts, count=None):
  """The learner's of the first texts, `[count, 1, L]` float32; 0 on padding."""
  count = count or len(texts.tokens)
  run = jax.jit(
    functools.partial(forward.logprobs, d, packing=Packing(), temperature=1.0, chunk=CHUNK)
  )
  rows = [
    jax.device_get(run(params, *host.to_device(d.layout, texts.part(slice(i, i + ROWS))))[0])
    for i in range(0, count, ROWS)
  ]
  return np.where(texts.real[:count], np.concatenate(rows), 0.0)


@pytest.fixture(scope="module")
def ours(params, texts):
  """Returns a function of a count: the learner's log-probs of so many texts, in float32."""
  return functools.cache(lambda count: log_probs(decoder(), params, texts, count))


def opened(dtype):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  return transformers.AutoModelForCausalLM.from_pretrained(
    FOLDER, dtype=getattr(torch, dtype)
  ).eval()


def their_log_probs(texts, dtype, rows=None):
  """Those of transformers, a sequence at a time and without padding; 0 on our padding."""
  import torch

  rows = range(len(texts.tokens)) if rows is None else rows
  model, found = opened(dtype), np.zeros((len(rows), *texts.tokens.shape[1:]), np.float32)
  for place, row in enumerate(rows):
    n, m = texts.prompts.lengths[row], texts.lengths[row, 0]
    ids = np.concatenate([texts.prompts.tokens[row, :n], texts.tokens[row, 0, :m]])
    with torch.no_grad():
      logits = model(torch.tensor(ids[None], dtype=torch.long), logits_to_keep=int(m) + 1).logits
      wide = torch.promote_types(logits.dtype, torch.float32)
      of_tokens = torch.log_softmax(logits[0, :-1].to(wide), -1)
      found[place, 0, :m] = of_tokens[torch.arange(int(m)), torch.tensor(ids[n:]).long()].numpy()
  return found


@pytest.fixture(scope="module")
def theirs(texts):
  """Returns a function of a count: transformers' log-probs of so many texts, in float32."""
  return functools.cache(lambda count: their_log_probs(texts, "float32", range(count)))


def test_prompts_have_the_ids_of_transformers(texts):
  transformers = pytest.importorskip("transformers")
  tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
  for question, ids, n in zip(texts.questions, texts.prompts.tokens, texts.prompts.lengths):
    assert tokenizer(TEMPLATE["template"].format(question=question))["input_ids"] == list(ids[:n])


@COUNTS
def test_log_probs_are_those_of_transformers(ours, theirs, texts, count):
  """To 1e-4, or as near to its float64 as its own float32 is: both round by the machine's load."""
  got, want, real = ours(count), theirs(count), texts.real[:count]
  error = np.where(real, np.abs(got - want), 0.0)
  print(f"float32: {real.sum()} tokens, largest {error.max():.1e}, mean {error[real].mean():.1e}")
  assert -2.0 < want[real].mean() < -0.5  # a pretrained model expects such texts
  for row in np.flatnonzero(error.max(axis=(1, 2)) >= 1e-4):
    exact = their_log_probs(texts, "float64", [row])[0]
    own, noise = (np.abs(x[row] - exact)[texts.real[row]].max() for x in (got, want))
    print(f"problem {row}, from float64: ours {own:.1e}, theirs {noise:.1e}")
    assert own < max(1e-4, 1.5 * noise)


def test_log_probs_behind_more_tokens_than_a_window_are_those_of_transformers(params, long_texts):
  got, want = log_probs(decoder(), params, long_texts), their_log_probs(long_texts, "float32")
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


@pytest.mark.long
def test_log_probs_in_bfloat16_differ_no_more_than_those_of_transformers(params, texts, theirs):
  got = log_probs(decoder(dtype="bfloat16"), params, texts, SOLUTIONS)
  want, real = their_log_probs(texts, "bfloat16", range(SOLUTIONS)), texts.real[:SOLUTIONS]
  error, noise = (np.abs(x - theirs(SOLUTIONS))[real] for x in (got, want))
  shares = (50, 90, 99, 100)
  of_ours, of_theirs = (np.percentile(x, shares) for x in (error, noise))
  print(f"bfloat16: ours {error.mean():.1e} {of_ours}, theirs {noise.mean():.1e} {of_theirs}")
  assert (
    error.mean() <= noise.mean() and (of_ours[:3] <= of_theirs[:3]).all()
  )  # the largest is one token


def greedy(d, params, texts, count, tokens, **settings):
  """The sampler's most likely tokens, a list for each of the first prompts."""
  cfg = tiny.section("sampler", group=1, max_length=tokens, temperature=0.0, **settings)
  run = sampler.make_sampler(d, cfg, reading.load(FOLDER).eos_ids)
  prompts, *_ = texts.part(slice(count))
  out = host.to_host(run(params, host.to_device(run.layout, prompts), jax.random.key(0))[0])
  return [list(t[0, :n]) for t, (n,) in zip(out.tokens, out.lengths)]


@pytest.mark.parametrize("count", [12, pytest.param(32, marks=pytest.mark.long)])
def test_greedy_tokens_are_those_of_transformers_also_in_slots_that_are_refilled(
  params, texts, count
):
  import torch

  tokens, slots = GREEDY.values()
  got = greedy(decoder(), params, texts, count, tokens, slots=slots)
  width = texts.prompts.tokens.shape[1]
  ids = np.zeros((count, width), np.int64)
  for row, (prompt, n) in enumerate(zip(texts.prompts.tokens[:count], texts.prompts.lengths)):
    ids[row, width - n :] = prompt[:n]  # padded on the left, as generate() needs it
  mask = np.arange(width) >= width - texts.prompts.lengths[:count, None]
  model = opened("float32")
  with torch.no_grad():
    out = model.generate(
      torch.tensor(ids),
      attention_mask=torch.tensor(mask).long(),
      max_new_tokens=tokens,
      do_sample=False,
    )
  ends = reading.load(FOLDER).eos_ids
  assert sum(map(len, got)) > count * tokens / 2
  for row, want in zip(got, out[:, width:].tolist()):
    stop = next((i for i, token in enumerate(want) if token in ends), tokens)
    assert row == want[: stop + 1]


@pytest.mark.long
def test_adapters_are_the_weights_that_they_are_merged_into(params, texts, ours):
  d = decoder(lora=Lora(rank=8, alpha=16.0, modules=("q", "k", "v", "o", "gate", "up", "down")))
  keys = iter(jax.random.split(jax.random.key(1), 100))
  size = {A: 0.02, B: 0.01}
  trained = jax.tree_util.tree_map_with_path(
    lambda path, x: size[path[-1].key] * jax.random.normal(next(keys), x.shape),
    split(d.shapes())[1],
  )
  whole = join(params, trained)
  merged = jax.jit(d.merged)(whole)
  got, want = log_probs(d, whole, texts, ROWS), log_probs(decoder(), merged, texts, ROWS)
  assert np.abs(want - ours(FEW)[:ROWS]).max() > 0.1
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


def test_an_export_has_the_same_bytes(params, tmp_path):
  tensors.save(
    tmp_path / "out",
    read_config(FOLDER),
    params,
    tokenizer=reading.load(FOLDER),
    dtype="bfloat16",
    base=FOLDER,
  )
  want, got = (
    safetensors.numpy.load_file(pathlib.Path(folder) / "model.safetensors")
    for folder in (FOLDER, tmp_path / "out")
  )
  assert got.keys() == want.keys()
  for name, values in want.items():
    assert got[name].dtype == values.dtype and got[name].tobytes() == values.tobytes(), name
  assert read_config(tmp_path / "out") == read_config(FOLDER)
  assert reading.load(tmp_path / "out").eos_ids == reading.load(FOLDER).eos_ids


@pytest.mark.parametrize(
  ("weights", "most"),
  [pytest.param("same", 1e-4, marks=pytest.mark.long), ("int8", 0.1)],
)
def test_what_decoding_changes_of_the_log_probs(weights, most, params, texts):
  """The mean absolute difference between the sampler's log-probs and the learner's."""
  cfg = tiny.section("sampler", group=1, max_length=COMPLETION, weights_dtype=weights)
  run = sampler.make_sampler(decoder(), cfg, reading.load(FOLDER).eos_ids)
  prompts, *_ = texts.part(slice(ROWS))
  out = host.to_host(run(params, host.to_device(run.layout, prompts), jax.random.key(0))[0])
  sampled = texts._replace(prompts=prompts, tokens=out.tokens, lengths=out.lengths)
  error = np.abs(out.sampler_logprobs - log_probs(decoder(), params, sampled, ROWS))[sampled.real]
  print(f"{weights}: {error.size} tokens, mean {error.mean():.1e}, largest {error.max():.1e}")
  assert error.size > 4 * ROWS and error.mean() < most
  assert weights == "same" or error.mean() > 1e-3  # in fact other weights


@pytest.mark.long
def test_a_mesh_of_two_by_two_gives_the_same(params, texts, ours):
  d = decoder(MESH)
  sharded = tensors.load(FOLDER, d)
  np.testing.assert_allclose(
    log_probs(d, sharded, texts, 2 * ROWS), ours(2 * ROWS), rtol=0, atol=1e-4
  )
  want = greedy(decoder(), params, texts, 4, 16)
  assert greedy(d, sharded, texts, 4, 16, slots=2) == want
