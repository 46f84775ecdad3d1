"""Adapters as PEFT reads them."""

import dataclasses
import json

import hf_test
import numpy as np
import pytest
import tiny
from lora_test import SHAPE, decoder, small_adapters
from small_models import SMALL

from grpo_jax.errors import SettingError
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hf import peft, tensors
from grpo_jax.models.hf.writing import check_target
from grpo_jax.models.lora import MODULES, Lora, join


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "modules"), [(n, MODULES) for n in hf_test.FAMILIES] + [("test_phi3", ("k", "v", "up"))]
)
def test_peft_opens_what_is_written(name, modules, tmp_path):
  """Its logits are those of the base that it is put on with our adapters; Phi-3's tensors hold
  several weights.
  """
  torch_peft = pytest.importorskip("peft")
  config, model = hf_test.theirs(name, SMALL[name].tied)
  model.save_pretrained(tmp_path / "base")
  lora = Lora(2, 5.0, modules)
  d, given = Decoder(config, tiny.layout(tiny.ONE), lora=lora), hf_test.batch()
  params = tensors.load(tmp_path / "base", d.base)
  trained = small_adapters(lora, name)
  peft.save(tmp_path / "adapter", config, lora, trained, d.base.shapes(), str(tmp_path / "base"))
  ours = hf_test.our_logits(d.base, d.merged(join(params, trained)), *given)
  theirs = hf_test.their_logits(
    torch_peft.PeftModel.from_pretrained(model, tmp_path / "adapter").eval(), *given
  )[0]
  np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)
  assert np.abs(ours - hf_test.our_logits(d.base, params, *given)).max() > 0.01
  said = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
  assert said["base_model_name_or_path"] == str(tmp_path / "base") and said["r"] == 2


@pytest.mark.slow
def test_peft_opens_a_reward_model(tmp_path, monkeypatch):
  """Over a policy's folder: its own score, of one label, takes the place of the fresh one."""
  torch_peft = pytest.importorskip("peft")
  import torch
  import transformers

  config, model = hf_test.theirs("test_qwen3", False)
  model.save_pretrained(tmp_path / "base")
  config, lora = dataclasses.replace(config, scores=True), Lora(2, 5.0, MODULES)
  d = Decoder(config, tiny.layout(tiny.ONE), lora=lora)
  trained = small_adapters(lora) | {
    "score": {"weight": np.linspace(-1, 1, config.width, dtype=np.float32)[None]}
  }
  monkeypatch.chdir(tmp_path)
  peft.save("adapter", config, lora, trained, d.base.shapes(), "base")
  said = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
  assert said["base_model_name_or_path"] == str(tmp_path / "base")
  tensors.save(
    tmp_path / "merged",
    config,
    d.merged(join(tensors.load("base", d.base, left_out=("score",)), trained)),
  )
  scorer, ids = transformers.AutoModelForSequenceClassification, torch.tensor([[5, 6, 7, 3]])
  on_base = scorer.from_pretrained(said["base_model_name_or_path"], num_labels=1)
  got = torch_peft.PeftModel.from_pretrained(on_base, "adapter").eval()(ids).logits.item()
  want = scorer.from_pretrained("merged").eval()(ids).logits.item()
  assert abs(got - want) < 1e-4 < abs(want)


def test_a_folder_of_a_run_is_not_replaced_by_a_model(tmp_path):
  """Tells a run's config.json from a model's."""
  for name in ("config.json", "metrics.jsonl"):
    (tmp_path / name).write_text("{}\n")
  with pytest.raises(SettingError, match="holds something else than a model"):
    check_target(tmp_path, "config.json", "a model")
  (tmp_path / "metrics.jsonl").unlink()
  check_target(tmp_path, "config.json", "a model")


def test_what_is_no_adapter_is_not_replaced(tmp_path):
  (tmp_path / "notes.txt").write_text("mine")
  config = SMALL["test_qwen3"]
  with pytest.raises(SettingError, match="holds something else than adapters"):
    peft.save(tmp_path, config, SHAPE, small_adapters(), decoder().base.shapes(), "base")
  assert (tmp_path / "notes.txt").read_text() == "mine"
