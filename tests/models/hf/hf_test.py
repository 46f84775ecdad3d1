"""Hugging Face folders: the same logits as transformers, bitwise round trips, refusals by name."""

import dataclasses
import errno
import functools
import json
import math
import os
import pathlib

import families
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import AxisType
from small_models import SMALL

from grpo_jax.distributed.sharding import AXES, Layout
from grpo_jax.errors import DataError, SettingError, StorageError
from grpo_jax.io import storage
from grpo_jax.models.attention import AttentionSpec
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hf import tensors
from grpo_jax.models.hf.config import read_config
from grpo_jax.models.variants import variant
from grpo_jax.ops.decoding import soft_cap
from grpo_jax.packing.lists import group_lists
from grpo_jax.packing.plan import Packing
from grpo_jax.packing.rows import Rows
from grpo_jax.tokenizer import making, reading
from grpo_jax.types import Prompts

FAMILIES = [name for name in SMALL if name != "test_windows"]


def layout(devices=1, **rules):
  sizes = (1, devices, 1, 1)
  mesh = jax.make_mesh(
    sizes, AXES, devices=jax.devices()[:devices], axis_types=(AxisType.Auto,) * 4
  )
  return Layout(mesh, tuple(rules.items()))


def decoder(config, devices=1, **rules):
  return Decoder(config, layout(devices, **rules))


@functools.cache
def randomised(config, seed=0):
  """Parameters without a fresh model's zeros and ones, which would hide a mistake."""
  rng = np.random.default_rng(seed)

  def mean(path):
    return 1.0 if path[-1].key == "scale" and not config.norm_plus_one else 0.0

  def draw(path, x):
    return jnp.asarray(mean(path) + 0.2 * rng.standard_normal(x.shape), jnp.float32)

  return jax.tree_util.tree_map_with_path(draw, decoder(config).shapes())


def saved(folder, name="test_qwen3", **options):
  config = SMALL[name]
  params = randomised(config)
  tensors.save(folder, config, params, **options)
  return config, params


def edit(folder, **changes):
  """Change keys of config.json; None removes one."""
  file = pathlib.Path(folder) / "config.json"
  raw = json.loads(file.read_text()) | changes
  file.write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))


def stored(folder):
  return safetensors.numpy.load_file(pathlib.Path(folder) / "model.safetensors")


def retensor(folder, drop=(), **added):
  content = {k: v for k, v in stored(folder).items() if k not in drop} | {
    k: v for k, v in added.items()
  }
  safetensors.numpy.save_file(content, str(folder / "model.safetensors"))


def parameters(config):
  """How many numbers the tree has."""
  return sum(math.prod(x.shape) for x in jax.tree.leaves(decoder(config).shapes()))


def assert_same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


# -- round trips


@pytest.mark.parametrize("name", FAMILIES)
def test_round_trip_is_bitwise(name, tmp_path):
  for tied in (True, False):
    config = dataclasses.replace(SMALL[name], tied=tied)
    params = randomised(config)
    tensors.save(tmp_path / "m", config, params)  # the second replaces the first
    assert read_config(tmp_path / "m") == config
    tensors.check(tmp_path / "m", decoder(config).shapes())
    assert_same(tensors.load(tmp_path / "m", decoder(config)), params)
    assert ("lm_head.weight" in stored(tmp_path / "m")) == (not tied)
  assert os.listdir(tmp_path) == ["m"]


def test_names_and_layout_of_the_file(tmp_path):
  config, params = saved(tmp_path / "m")
  t = stored(tmp_path / "m")
  assert len(t) == 3 + 11 * config.layers
  with safetensors.safe_open(tmp_path / "m/model.safetensors", framework="np") as f:
    assert f.metadata() == {"format": "pt"}  # transformers 4 reads no other
  q = params["layers"]["attention"]["q"]["weight"]
  np.testing.assert_array_equal(t["model.layers.1.self_attn.q_proj.weight"], q[1])
  assert q[1].shape == (config.heads * config.head_dim, config.width)
  np.testing.assert_array_equal(
    t["model.layers.0.post_attention_layernorm.weight"], params["layers"]["mlp_norm"]["scale"][0]
  )


def test_whoever_reads_the_folder_reads_its_files(tmp_path):
  config = SMALL["test_qwen3"]
  (tmp_path / "all").mkdir(mode=0o755)
  tensors.save(tmp_path / "all" / "m", config, randomised(config))
  (file,) = (tmp_path / "all" / "m").glob("*.safetensors")
  assert file.stat().st_mode & 0o666 == file.parent.stat().st_mode & 0o666 == 0o644


def test_sharded_reading_and_writing(tmp_path, monkeypatch):
  """Reading goes straight into shardings, each shard its own bytes and once; writing gathers."""
  if len(jax.devices()) < 4:
    pytest.skip("needs four devices: XLA_FLAGS=--xla_force_host_platform_device_count=8")
  config, params = saved(tmp_path / "m", "test_qwen2")
  mesh = jax.make_mesh(
    (2, 2, 1, 1), AXES, devices=jax.devices()[:4], axis_types=(AxisType.Auto,) * 4
  )
  sharded = Decoder(config, Layout(mesh, (("embed", ("fsdp",)),)))
  read = []

  class Slice:
    def __init__(self, name, view):
      self.name, self.view = name, view

    def __getitem__(self, index):
      out = self.view[index]
      read.append((self.name, out.shape))
      return out

  real = safetensors.safe_open

  class File:
    def __init__(self, *args, **kwargs):
      self.f = real(*args, **kwargs)

    def get_slice(self, name):
      return Slice(name, self.f.get_slice(name))

  files = tensors._locate(tmp_path / "m", sharded.shapes())
  # its look at the headers is not counted
  monkeypatch.setattr(tensors, "_locate", lambda *_: files)
  monkeypatch.setattr(safetensors, "safe_open", File)
  told = []
  loaded = tensors.load(
    tmp_path / "m", sharded, progress=lambda *bytes_read: told.append(bytes_read)
  )
  assert_same(loaded, params)
  size = 4 * parameters(config)
  assert (
    told[-1] == (size, size)
    and len(told) == len(read)
    and [done for done, _ in told] == sorted(set(dict(told)))
  )
  q = loaded["layers"]["attention"]["q"]["weight"]
  assert q.sharding == sharded.shardings()["layers"]["attention"]["q"]["weight"]
  assert {s.data.shape for s in q.addressable_shards} == {(2, 32, 16)}
  name = "model.layers.1.self_attn.q_proj.weight"
  assert [shape for n, shape in read if n == name] == [(32, 16)] * 2  # two halves, for four devices
  assert sum(int(np.prod(shape)) for _, shape in read) == parameters(config)
  tensors.save(tmp_path / "again", config, loaded)
  assert (tmp_path / "m/model.safetensors").read_bytes() == (
    tmp_path / "again/model.safetensors"
  ).read_bytes()


# -- config.json


@pytest.mark.parametrize(
  "changes",
  [
    {"attention": (AttentionSpec(window=4), AttentionSpec())},
    {"attention": (AttentionSpec(soft_cap=5.0),)},
    {"attention": (AttentionSpec(scale=0.5),)},
    {"logit_soft_cap": 30.0},
  ],
)
def test_attention_of_no_family_cannot_be_exported(changes, tmp_path):
  """It would be left out of config.json, and another program would compute something else."""
  config = variant("test_llama", **changes)
  with pytest.raises(SettingError, match="no Hugging Face family.*logit_soft_cap=") as error:
    tensors.save(tmp_path / "m", config, randomised(config))
  assert not any(tmp_path.iterdir()) and "\n" not in str(error.value)


def test_the_official_gemma_1_says_gelu_and_means_its_approximation(tmp_path):
  """As google/gemma-2b has it, and as transformers reads it; a gelu that is meant exactly is
  refused.
  """
  config, model = theirs("test_gemma", True)
  import transformers

  model.save_pretrained(tmp_path)
  raw = json.loads((tmp_path / "config.json").read_text())
  (tmp_path / "config.json").write_text(
    json.dumps(raw | {"hidden_act": "gelu", "hidden_activation": None})
  )
  assert read_config(tmp_path) == config
  d = decoder(config)
  prompts, completions = batch()
  ours = our_logits(d, tensors.load(tmp_path, d), prompts, completions)
  again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
  np.testing.assert_allclose(ours, their_logits(again, prompts, completions)[0], atol=1e-4, rtol=0)
  edit(tmp_path, hidden_activation="gelu")
  with pytest.raises(DataError, match="hidden_act 'gelu' in a gemma"):
    read_config(tmp_path)


def test_unknown_keys_of_the_base_are_kept(tmp_path):
  config, params = saved(tmp_path / "base")
  edit(
    tmp_path / "base",
    max_position_embeddings=40960,
    bos_token_id=7,
    rope_scaling=None,
    vocab_size=1,
  )
  # code of that folder, which is not exported
  edit(tmp_path / "base", auto_map={"AutoModel": "modeling.Model"})
  tensors.save(tmp_path / "m", config, params, base=tmp_path / "base")
  raw = json.loads((tmp_path / "m/config.json").read_text())
  assert (raw["max_position_embeddings"], raw["bos_token_id"], raw["vocab_size"]) == (
    40960,
    7,
    config.vocab,
  )
  assert "auto_map" not in raw


def test_the_positions_of_a_model_are_kept_without_its_folder(tmp_path):
  _, params = saved(tmp_path / "base")
  edit(tmp_path / "base", max_position_embeddings=40960)
  config = read_config(tmp_path / "base")
  assert config.context == 40960
  tensors.save(tmp_path / "m", config, params)
  assert json.loads((tmp_path / "m/config.json").read_text())["max_position_embeddings"] == 40960


def test_flags_of_no_family_cannot_be_exported(tmp_path):
  config = variant("test_qwen3", attention_bias=True)
  with pytest.raises(SettingError, match="no Hugging Face family"):
    tensors.save(tmp_path / "m", config, randomised(config))
  assert not any(tmp_path.iterdir())


# -- broken folders


def test_names_without_model_are_explained(tmp_path):
  config, _ = saved(tmp_path, "test_qwen2")
  weights = safetensors.numpy.load_file(tmp_path / "model.safetensors")
  bare = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
  safetensors.numpy.save_file(bare, tmp_path / "model.safetensors")
  with pytest.raises(
    DataError, match="no 'model.' before their names.*save the model as AutoModelForCausalLM"
  ):
    tensors.check(tmp_path, decoder(config).shapes())


# -- tokenizer and disk


def test_tokenizer_travels_along_and_must_fit(tmp_path):
  t = making.word_level(["a b"])
  config = variant("test_qwen3", vocab=t.vocab_size + 4)
  tensors.save(tmp_path / "m", config, randomised(config), tokenizer=t)
  raw = json.loads((tmp_path / "m/config.json").read_text())
  assert (raw["eos_token_id"], raw["pad_token_id"]) == (t.eos_id, t.pad_id)
  again = reading.load(tmp_path / "m")
  assert again.encode("a b") == t.encode("a b") and again.eos_ids == t.eos_ids
  small = variant("test_qwen3", vocab=t.vocab_size - 1)
  with pytest.raises(
    DataError, match=f"ids reach {t.vocab_size - 1}, the model has {t.vocab_size - 1} embeddings"
  ):
    tensors.check_tokenizer(t, small)
  with pytest.raises(DataError, match="--config.tokenizer=DIR"):
    tensors.save(tmp_path / "m", small, randomised(small), tokenizer=t)


def test_special_tokens_beyond_the_embeddings_are_no_error(tmp_path):
  """As `<image_soft_token>` of Gemma 3's tokenizer is beyond its text models; an end token may not
  be.
  """
  t = making.word_level(["a b"])
  config = variant("test_qwen3", vocab=t.vocab_size)
  t._backend.add_special_tokens(["<image_soft_token>"])
  t.save(tmp_path)
  again = reading.load(tmp_path)
  assert again.vocab_size == config.vocab + 1 and again.text_size <= config.vocab
  tensors.check_tokenizer(again, config)
  assert max(again.encode("<image_soft_token>")) < config.vocab
  again.eos_ids = (config.vocab,)
  with pytest.raises(
    DataError, match=f"eos_token_id or pad_token_id {config.vocab} is none of the model's"
  ):
    tensors.check_tokenizer(again, config)


@pytest.mark.parametrize(
  "error", [OSError(28, "No space left on device"), safetensors.SafetensorError("No space left")]
)
def test_a_failed_export_leaves_what_was_there(error, tmp_path, monkeypatch):
  config, params = saved(tmp_path / "m")

  def full(*args, **kwargs):
    raise error

  monkeypatch.setattr(safetensors.numpy, "save_file", full)
  with pytest.raises(StorageError, match="cannot be written.*No space left"):
    tensors.save(tmp_path / "m", config, jax.tree.map(jnp.zeros_like, params))
  assert os.listdir(tmp_path) == ["m"]
  assert_same(tensors.load(tmp_path / "m", decoder(config)), params)


def test_an_export_that_cannot_take_its_name_leaves_what_was_there(tmp_path, monkeypatch):
  config, params = saved(tmp_path / "m")
  rename, refused = storage.rename, [tmp_path / "m"]  # once

  def refuse(source, target, **options):
    if target in refused:
      refused.remove(target)
      raise OSError(errno.EIO, "Input/output error")
    rename(source, target, **options)

  monkeypatch.setattr(storage, "rename", refuse)
  with pytest.raises(StorageError, match="cannot be written.*Input/output"):
    tensors.save(tmp_path / "m", config, jax.tree.map(jnp.zeros_like, params))
  assert not refused and os.listdir(tmp_path) == ["m"]
  assert_same(tensors.load(tmp_path / "m", decoder(config)), params)


def test_export_takes_no_folder_of_somebody_else(tmp_path):
  (tmp_path / "thesis.tex").write_text("x")
  config = SMALL["test_llama"]
  with pytest.raises(SettingError, match="something else than a model"):
    tensors.save(tmp_path, config, randomised(config))
  with pytest.raises(SettingError, match="something else than a model"):
    tensors.save(tmp_path / "thesis.tex", config, randomised(config))
  assert (tmp_path / "thesis.tex").read_text() == "x"


# -- transformers as the oracle


def batch():
  """Prompts of different lengths, padded with a live token, and two completions each: [P, Lp], [P,
  G, L].
  """
  rng = np.random.default_rng(0)
  prompts, completions = rng.integers(0, 96, (3, 7)), rng.integers(0, 96, (3, 2, 5))
  return Prompts(jnp.asarray(prompts, jnp.int32), jnp.asarray([7, 4, 1], jnp.int32)), completions


def our_logits(d, params, prompts, completions):
  """[P, G, 1 + L, V]: after the prompt, and after each completion token."""
  p, g, n = completions.shape
  rows = Rows(
    jnp.asarray(completions, jnp.int32),
    jnp.broadcast_to(jnp.arange(g)[:, None], (p, g, n)),
    jnp.broadcast_to(jnp.arange(n), (p, g, n)),
  )
  lists = group_lists(prompts, rows, Packing())
  last, hidden = jax.jit(d.forward)(params, prompts, rows, lists)
  hidden = jnp.concatenate(
    [jnp.broadcast_to(last[:, None, None], (p, g, 1, last.shape[-1])), hidden], axis=2
  )
  logits = jnp.einsum("pgld,vd->pglv", hidden, d.unembed(params), precision="highest")
  return np.asarray(soft_cap(logits, d.config.logit_soft_cap))


def their_logits(model, prompts, completions):
  """The same, a sequence at a time and without any padding; then padded on the left as generate()
  does.
  """
  import torch

  sequences = [
    (np.concatenate([np.asarray(prompts.tokens[i, :n]), completions[i, j]]), n)
    for i, n in enumerate(np.asarray(prompts.lengths))
    for j in range(completions.shape[1])
  ]
  longest = max(len(s) for s, _ in sequences)
  ids = torch.zeros((len(sequences), longest), dtype=torch.long)
  mask = torch.zeros_like(ids)
  alone = []
  with torch.no_grad():
    for row, (s, n) in enumerate(sequences):
      alone.append(model(torch.tensor(s[None])).logits[0, n - 1 :].numpy())
      ids[row, longest - len(s) :], mask[row, longest - len(s) :] = torch.tensor(s), 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    padded = (
      model(ids, attention_mask=mask, position_ids=positions)
      .logits[:, -completions.shape[2] - 1 :]
      .numpy()
    )
  shape = (*completions.shape[:2], completions.shape[2] + 1, -1)
  return np.stack(alone).reshape(shape), padded.reshape(shape)


def theirs(name, tied):
  """A row of the table, and its random model as transformers makes it."""
  config = dataclasses.replace(SMALL[name], tied=tied)
  family = config.family or {"test_llama3": "llama"}.get(name, name.removeprefix("test_"))
  return config, families.model(config, family)


# A family has one of its two forms among the quick tests, that of its row.
FORMS = [
  pytest.param(name, tied, marks=() if tied == SMALL[name].tied else pytest.mark.slow)
  for name in FAMILIES
  for tied in (True, False)
]


@pytest.mark.parametrize(("name", "tied"), FORMS)
def test_logits_of_transformers(name, tied, tmp_path):
  """Import: folder written by transformers. Export: what we write, transformers loads to the same
  logits.
  """
  config, model = theirs(name, tied)
  import transformers

  model.save_pretrained(tmp_path / "theirs")
  assert read_config(tmp_path / "theirs") == config and read_config(tmp_path / "theirs").family
  d = decoder(config)
  params = tensors.load(tmp_path / "theirs", d)
  prompts, completions = batch()
  ours = our_logits(d, params, prompts, completions)
  alone, padded = their_logits(model, prompts, completions)
  assert ours.std() > 0.3
  np.testing.assert_allclose(ours, alone, atol=1e-4, rtol=0)
  np.testing.assert_allclose(ours, padded, atol=1e-4, rtol=0)

  for options in ({}, {"max_bytes": 20_000}, {"base": tmp_path / "theirs"}):
    tensors.save(tmp_path / "ours", config, params, **options)
    again, info = transformers.AutoModelForCausalLM.from_pretrained(
      tmp_path / "ours", dtype="auto", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert again.dtype == model.dtype and type(again) is type(model)
    np.testing.assert_array_equal(their_logits(again.eval(), prompts, completions)[0], alone)
  # Bitwise through both programs.
  again.save_pretrained(tmp_path / "back")
  assert_same(tensors.load(tmp_path / "back", d), params)


def test_transformers_generates_from_an_export(tmp_path):
  """Config, weights and tokenizer together, as a person would run them; it stops at our stop token."""
  transformers = pytest.importorskip("transformers")
  import torch

  t = making.word_level(["one two three"])
  config = variant("test_qwen3", vocab=t.vocab_size)
  params = randomised(config)
  unembed = params["unembed"]["weight"]
  tensors.save(tmp_path / "m", config, params, tokenizer=t)
  model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
  prompt = theirs("one two\n", return_tensors="pt")
  assert prompt["input_ids"][0].tolist() == t.render("one two")
  out = model.generate(**prompt, max_new_tokens=6, do_sample=False)[0].tolist()
  d, tokens = decoder(config), t.render("one two")
  with torch.no_grad():
    for _ in range(6):
      last, _ = d.prefill(params, Prompts(jnp.asarray([tokens]), jnp.asarray([len(tokens)])))
      tokens.append(int((last[0] @ unembed.T).argmax()))
      if tokens[-1] in t.eos_ids:
        break
  assert out == tokens
  assert model.generation_config.eos_token_id == t.eos_id
