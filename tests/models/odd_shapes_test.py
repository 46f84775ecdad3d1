"""Families in odd shapes against transformers: logits, and greedy completions of the sampler,
refilled and on a mesh.

What each family is in its own shape, hf_test.py has among its tables.
"""

import dataclasses
import json

import families
import hf_test
import jax
import numpy as np
import pytest
import tiny
from small_models import SMALL

from grpo_jax.errors import DataError, SettingError
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hf import tensors
from grpo_jax.models.hf.config import read_config, write_config
from grpo_jax.sampling import rollouts as host
from grpo_jax.sampling import sampler

CASES = ("test_mistral", "test_gemma2", "test_gemma3", "test_olmo2", "test_smollm3", "test_phi3")
TOKENS = 64
# CI takes the family with the most parts of its own
SHORT = ("test_gemma3",)
EACH = [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in CASES]


@pytest.mark.slow
@pytest.mark.parametrize(
  "odd",
  [
    {"kv_heads": 1, "head_dim": 6, "layers": 1},
    {"kv_heads": 4, "head_dim": 10, "vocab": 101, "layers": 4},
  ],
)
@pytest.mark.parametrize("name", EACH)
def test_odd_shapes(name, odd, tmp_path):
  """One key/value head, as many as of queries; heads of a size that the width does not say; tied
  where it was not.
  """
  row = SMALL[name]
  specs = row.attention[: odd["layers"]]
  config = dataclasses.replace(row, tied=not row.tied, attention=specs, **odd)
  model = families.model(config, row.family)
  model.save_pretrained(tmp_path)
  assert read_config(tmp_path) == config
  d, given = hf_test.decoder(config), hf_test.batch()
  ours = hf_test.our_logits(d, tensors.load(tmp_path, d), *given)
  np.testing.assert_allclose(ours, hf_test.their_logits(model, *given)[0], atol=1e-4, rtol=0)


def greedy(model, prompts):
  """What transformers says, a prompt at a time: a list of tokens for each."""
  import torch

  model.generation_config.eos_token_id = None
  how = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
  found = []
  for tokens, n in zip(prompts.tokens, prompts.lengths):
    ids = torch.tensor(tokens[None, :n].astype(np.int64))
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **how) if n else ids
    found.append(out[0, n:].tolist())
  return found


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_greedy_completions_are_those_of_transformers(name, tmp_path):
  """From the cache, in slots that are refilled, on one device and on two by two; prompts of 1 to 6
  tokens.
  """
  config, model = hf_test.theirs(name, SMALL[name].tied)
  model.save_pretrained(tmp_path)
  prompts = tiny.prompts()
  free = greedy(model, prompts)
  given = sum(map(bool, free))
  # it ends some of them
  stop = next(t for w in free for t in w if 0 < sum(t in other for other in free) < given)
  want = [w[: w.index(stop) + 1] if stop in w else w for w in free]
  assert max(map(len, want)) == TOKENS
  for mesh, slots in ((tiny.ONE, 0), (tiny.ONE, 3), ((1, 2, 1, 2), 3)):
    d = Decoder(config, tiny.layout(mesh))
    cfg = tiny.section("sampler", group=2, max_length=TOKENS, temperature=0.0, slots=slots)
    run = sampler.make_sampler(d, cfg, (stop,))
    on_device = host.to_device(d.layout, prompts)
    r = host.to_host(run(tensors.load(tmp_path, d), on_device, jax.random.key(0))[0])
    got = [[list(r.tokens[p, g, : r.lengths[p, g]]) for g in range(2)] for p in range(tiny.P)]
    assert got == [[w, w] for w in want], (mesh, slots)


# -- config.json


def said(name, **changes):
  """The config.json of a row, with changes; None removes a key."""
  found = write_config(SMALL[name]) | changes
  return {key: value for key, value in found.items() if value is not None}


def read(folder, said):
  (folder / "config.json").write_text(json.dumps(said))
  return read_config(folder)


def test_what_config_json_leaves_out_is_the_familys(tmp_path):
  """As transformers has it where a key is not there; null is another thing."""
  mistral = said(
    "test_mistral", sliding_window=None, num_key_value_heads=None, num_attention_heads=8
  )
  assert (read(tmp_path, mistral).attention[0].window, read(tmp_path, mistral).kv_heads) == (
    4096,
    8,
  )
  nulls = {"sliding_window": None, "num_key_value_heads": None}
  assert read(tmp_path, mistral | {"num_attention_heads": 4} | nulls).attention[0].window == 0
  assert read(tmp_path, mistral | {"num_attention_heads": 4} | nulls).kv_heads == 4
  gone = {
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "layer_types",
  }
  gemma2 = read(tmp_path, {k: v for k, v in said("test_gemma2").items() if k not in gone})
  assert [gemma2.layer_attention(i).window for i in range(3)] == [4, 0, 4]
  assert (gemma2.logit_soft_cap, gemma2.attention[0].soft_cap, gemma2.attention[0].scale) == (
    30.0,
    50.0,
    256**-0.5,
  )
  capless = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
  assert read(tmp_path, said("test_gemma2") | capless).logit_soft_cap == 0


def test_the_older_spelling_is_the_newer(tmp_path):
  """transformers 4: no layer_types, no rope_parameters."""
  old = {"layer_types": None, "rope_parameters": None, "dtype": None}
  for name in CASES:
    older = said(name, **old) | ({"sliding_window_pattern": 3} if name == "test_gemma3" else {})
    assert read(tmp_path, older) == SMALL[name], name
  smollm3 = said("test_smollm3", no_rope_layers=None, no_rope_layer_interval=3)
  assert [read(tmp_path, smollm3).layer_attention(i).rope for i in range(3)] == [True, True, False]


@pytest.mark.parametrize(
  ("name", "changes", "named"),
  [
    ("test_phi3", {"rope_parameters": {"rope_type": "longrope"}}, "rope scaling 'longrope'"),
    ("test_phi3", {"rope_parameters": None, "rope_scaling": {"type": "su"}}, "rope scaling 'su'"),
    ("test_phi3", {"partial_rotary_factor": 0.75}, "partial_rotary_factor"),
    ("test_mistral", {"layer_types": ["full_attention"] * 2}, "full_attention.* in a mistral"),
    ("test_gemma2", {"layer_types": ["full_attention"]}, "1 layer_types for 3 layers"),
    ("test_gemma2", {"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
    ("test_gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("test_gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("test_gemma3", {"sliding_window": 0}, "sliding_window=0; a whole number of at least 1"),
    ("test_smollm3", {"no_rope_layers": [1]}, "1 no_rope_layers for 3 layers"),
    ("test_smollm3", {"no_rope_layers": [1, 2, 0]}, "no_rope_layers="),
    (
      "test_smollm3",
      {"layer_types": ["sliding_attention"] * 3},
      "sliding_attention.* in a smollm3",
    ),
    ("test_olmo2", {"attention_bias": True}, "attention_bias"),
    (
      "test_olmo2",
      {"model_type": "olmo3"},
      "model_type 'olmo3' is not supported; .*qwen3.*olmo2.*phi3",
    ),
  ],
)
def test_refused_by_name(name, changes, named, tmp_path):
  with pytest.raises(DataError, match=named) as error:
    read(tmp_path, said(name, **changes))
  assert "\n" not in str(error.value) and "init_from" in str(error.value)


def test_what_a_family_cannot_say_is_not_exported():
  """A window without a theta of its own in a Gemma 3, a scale that is no whole number's, another
  family's flags.
  """
  gemma3, gemma2 = SMALL["test_gemma3"], SMALL["test_gemma2"]
  spec = dataclasses.replace(gemma3.attention[0], rope_theta=None)
  capped = dataclasses.replace(gemma2.attention[1], soft_cap=1.0)
  for config in (
    dataclasses.replace(gemma3, attention=(spec, gemma3.attention[2])),
    dataclasses.replace(gemma2, attention=(gemma2.attention[0], capped)),
    dataclasses.replace(gemma2, attention=(dataclasses.replace(gemma2.attention[0], scale=0.3),)),
    dataclasses.replace(
      gemma2, attention=(dataclasses.replace(gemma2.attention[0], scale=1e-300),)
    ),
    dataclasses.replace(SMALL["test_mistral"], qk_norm=True),
    dataclasses.replace(SMALL["test_qwen3"], rope_linear=2.0),
  ):
    with pytest.raises(SettingError, match="no Hugging Face family"):
      write_config(config)
