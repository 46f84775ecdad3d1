"""Folders of weights and checkpoints of runs."""

from typing import Any

import tiny
from passed_on_test import stub
from small_models import SMALL

from grpo_jax.models.decoder import Decoder
from grpo_jax.models.lora import Lora
from grpo_jax.setup import references, weights


def test_a_reference_of_a_step_is_read_from_the_run_although_it_has_an_export_by_now(monkeypatch):
  monkeypatch.setattr(references, "check_source", lambda *args: None)
  monkeypatch.setattr(weights, "find_source", lambda source: (f"{source}/export", ""))
  monkeypatch.setattr(weights, "restore", lambda run, decoder, step: (run, step))
  monkeypatch.setattr(weights, "load", lambda folder, decoder, dtype: (folder, dtype))
  model: Any = stub(decoder=stub(base=None))
  held = references.reference("runs/1", model, "ref_from", dtype="bfloat16")
  assert held == ("runs/1/export", "bfloat16")
  assert references.reference("runs/1", model, "ref_from", step=2) == ("runs/1", 2)


def test_the_source_of_a_learner_of_a_run():
  config = {"init_from": "policy", "iterative": {"reward_model": "judge"}}
  assert [weights.began_with(config, name) for name in ("policy", weights.REWARD_MODEL)] == [
    "policy",
    "judge",
  ]
  assert (
    weights.began_with({"init_from": "policy", "iterative": None}, weights.REWARD_MODEL) == "policy"
  )


def test_a_run_of_all_weights_is_restored_for_a_policy_with_adapters(monkeypatch):
  """Asks its checkpoint for no adapters, as a reference of a run with `lora.rank`."""
  asked = []
  monkeypatch.setattr(weights.provenance, "saved_config", lambda run: {})
  monkeypatch.setattr(weights, "restore_trained", lambda run, decoder, *_: asked.append(decoder))
  adapted = Decoder(SMALL["test_qwen3"], tiny.layout(tiny.ONE), lora=Lora(2, 4.0, ("q",)))
  weights.restore("run", adapted)
  assert asked == [adapted.base]
