"""Runs whose adapters are trained: with every loop, killed and gone on, saved, exported and read
again.
"""

import dataclasses
import importlib
import json
import shutil

import jax
import numpy as np
import pytest
import resume_test
import safetensors.numpy
import tiny
import tiny_runs

from experiments import export, sources
from grpo_jax.errors import CheckpointError
from grpo_jax.loops import reward_model
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hf import tensors
from grpo_jax.models.lora import A, B
from grpo_jax.reward_models import load
from grpo_jax.run import checkpoint
from grpo_jax.setup import adapters, build, defaults, weights
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve

pytestmark = pytest.mark.slow


def settings():
  changes = {
    "steps": 2,
    "data.arithmetic.size": 64,
    "data.max_prompt_length": 16,
    "data.on_long": "cut",
    "sampler.stop": tuple("0123456789"),
    "objective.beta": 0.0,
    "offline.prompts": 16,
    "iterative.labels": "parity",
    "iterative.steps": 1,
    "iterative.pairs": 4,
    "eval.problems": 0,
    "checkpoint.every": 1,
    "compilation_cache": "",
  }
  return tiny_runs.config(changes)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
  """A Hugging Face folder of random weights."""
  folder = tmp_path_factory.mktemp("base") / "folder"
  model = build.model(make(settings()), jax.devices()[:1])
  tensors.save(folder, model.decoder.config, model.load(), tokenizer=model.tokenizer)
  return folder


def train(c, base, folder, **lora):
  c.init_from, c.model.variant, c.tokenizer = str(base), "", ""
  c.lora.update({"rank": 2, "alpha": 8.0} | lora)
  with pytest.MonkeyPatch.context() as patch:
    make = build.model
    patch.setattr(
      build, "model", lambda config, devices=None, **how: make(config, jax.devices()[:1], **how)
    )
    importlib.import_module(f"grpo_jax.loops.{c.loop}").train(resolve(c), str(folder))
  return folder


def saved(folder, step=2):
  return set(checkpoint.about(str(folder), step)["arrays"])


CASES = {
  "grpo": ("online", "", {"beta": 0.1}),
  "ppo": ("online", "", {}),
  "gspo": ("online", "", {}),
  "target_prob": ("online", "", {}),
  "sft": ("offline", "solutions", {}),
  "dpo": ("offline", "pairs", {}),
  "reward_model": ("reward_model", "pairs", {}),
}


LONG = ("ppo", "gspo", "target_prob", "sft", "dpo")  # nothing of adapters is theirs


@pytest.mark.parametrize(
  "name", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in CASES]
)
def test_adapters_alone_are_trained_and_saved(name, base, tmp_path):
  c, (loop, data, more) = settings(), CASES[name]
  c.loop, c.objective = loop, defaults.objective(name, c)
  c.objective.update(more)
  c.offline.data = data or c.offline.data
  c.offline.held_out = 4 if loop == "reward_model" else 0
  run = train(c, base, tmp_path / "run")
  names = {path.partition(".params.")[2] for path in saved(run) if ".params." in path}
  trees_ = {path.partition(".")[0] for path in names}
  assert trees_ == ({"policy", "critic"} if name == "ppo" else {"policy"})
  heads = {path for path in names if path.rpartition(".")[2] not in (A, B)}
  assert all(".score." in path or ".value_head." in path for path in heads)
  assert bool(heads) == (name in ("ppo", "reward_model")) and len(names - heads) == 14 * len(trees_)
  start, end = (
    safetensors.numpy.load_file(f / "model.safetensors") for f in (base, run / "export")
  )
  for path in start:
    if path != "lm_head.weight" or path in end:
      assert (start[path] == end[path]).all() == ("_proj" not in path), path
  model = build.model(make(c), jax.devices()[:1], scores=loop == "reward_model")
  again = weights.restore(str(run), model.decoder, 2)
  jax.tree.map(
    np.testing.assert_array_equal, again, tensors.load(run / "export", model.decoder.base)
  )
  adapter = safetensors.numpy.load_file(run / "adapter" / "adapter_model.safetensors")
  assert len(adapter) == 2 * 7 * model.decoder.config.layers + (name == "reward_model")
  export.export(str(run), None, "policy", str(tmp_path / "adapter"), adapter=True)
  by_command = safetensors.numpy.load_file(tmp_path / "adapter" / "adapter_model.safetensors")
  assert adapter.keys() == by_command.keys()
  assert all((adapter[key] == by_command[key]).all() for key in adapter)


@pytest.mark.long
def test_iterative_moves_its_reference_and_teaches_by_adapters(base, tmp_path):
  c = settings()
  c.loop, c.objective.beta, c.data.prompts = "iterative", 0.1, 16
  own = tmp_path / "base"
  shutil.copytree(base, own)
  run = train(c, own, tmp_path / "run")
  owners = {path.partition(".")[0]: path for path in saved(run)}
  assert set(owners) == {"policy", "reward_model", "reference"}
  assert not [path for path in saved(run) if path.endswith("proj.weight") or "embed" in path]
  lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
  assert sum(line.get("reward_model/updates", 0) for line in lines) > 0
  start, end = (
    safetensors.numpy.load_file(f / "model.safetensors") for f in (base, run / "reward_model")
  )
  assert (
    any((end[path] != start[path]).any() for path in start if path in end)
    and np.abs(end["score.weight"]).max() > 0
  )
  decoder = Decoder(weights.read_shape(str(own)), tiny.layout(tiny.ONE))
  weights.restore(str(run), decoder, learner="reference")
  move_norm(own)
  with pytest.raises(
    CheckpointError, match="does not hold the parameters that this run's adapters were trained over"
  ):
    weights.restore(str(run), decoder, learner="reference")


def move_norm(folder):
  """Makes a folder's weights others, of the same shapes."""
  weights = safetensors.numpy.load_file(folder / "model.safetensors")
  weights["model.norm.weight"] = weights["model.norm.weight"] + 1
  safetensors.numpy.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_the_base_may_be_gone_or_another(base, tmp_path):
  """What needs it says so; what a checkpoint holds by itself, adapters, can be read without it."""
  own = tmp_path / "base"
  shutil.copytree(base, own)
  run = train(settings(), own, tmp_path / "run")
  decoder = Decoder(weights.read_shape(str(own)), tiny.layout(tiny.ONE))
  weights.restore(str(run), decoder, 2)
  move_norm(own)
  with pytest.raises(
    CheckpointError, match="does not hold the parameters that this run's adapters were trained over"
  ):
    weights.restore(str(run), decoder, 2)
  own.rename(tmp_path / "moved")
  with pytest.raises(
    CheckpointError, match="its adapters stand on init_from=.*which is not there; put it back"
  ):
    weights.restore(str(run), decoder, 2)


@pytest.fixture(scope="module")
def unended(base, tmp_path_factory):
  """A run with adapters over a base in bfloat16, and without an export; `base` is beside it."""
  folder = tmp_path_factory.mktemp("unended")
  model = build.model(make(settings()), jax.devices()[:1])
  tensors.save(
    folder / "base", model.decoder.config, model.load(), tokenizer=model.tokenizer, dtype="bfloat16"
  )
  return train(without_export(), folder / "base", folder / "run")


def without_export(steps=2, **changes):
  c = settings()
  c.loop, c.objective, c.checkpoint.export, c.steps = (
    "offline",
    defaults.objective("sft", c),
    False,
    steps,
  )
  c.update_from_flattened_dict(changes)
  return c


def dtypes(params):
  return {str(x.dtype) for x in jax.tree.leaves(params)}


@pytest.mark.long
def test_all_weights_are_trained_on_from_a_run_with_adapters(unended, tmp_path):
  """In float32, though the base is in bfloat16: a run in bfloat16 could not be gone on with."""
  for steps in (1, 2):
    train(without_export(steps), unended, tmp_path / "run", rank=0)
  loaded = build.model(make(of(unended)), jax.devices()[:1]).load()
  assert dtypes(loaded) == {"float32"}
  base = tensors.load(
    unended.parent / "base",
    Decoder(weights.read_shape(str(unended.parent / "base")), tiny.layout()),
  )
  same = jax.tree.map(lambda a, b: bool((a == b).all()), loaded, base)
  assert (
    same["embed"]["weight"]
    and same["unembed"]["weight"]
    and not same["layers"]["mlp"]["up"]["weight"]
  )


def of(folder, **changes):
  return without_export(
    **{"init_from": str(folder), "model.variant": "", "tokenizer": ""} | changes
  )


def test_a_reward_model_starts_from_a_run_with_adapters(unended):
  whole = build.model(make(of(unended)), jax.devices()[:1]).load()
  judge = build.model(make(of(unended)), jax.devices()[:1], scores=True).load()
  assert (
    set(judge) == {"embed", "layers", "final_norm", "score"}
    and not judge.pop("score")["weight"].any()
  )
  del whole["unembed"]
  jax.tree.map(np.testing.assert_array_equal, judge, whole)


@pytest.mark.long
def test_adapters_are_those_of_what_is_trained_alone(base, unended, tmp_path, monkeypatch):
  """A reward model that only scores, a teacher and a policy that is evaluated have none, and no
  base in bfloat16.
  """
  c = without_export(**{"offline.data": "pairs", "offline.held_out": 4, "learner.lr": 0.0})
  c.loop, c.objective = "reward_model", defaults.objective("reward_model", c)
  scorer = train(c, base, tmp_path / "scorer", rank=0)  # a run without an export
  on_all = build.model
  monkeypatch.setattr(
    build, "model", lambda config, devices=None, **how: on_all(config, jax.devices()[:1], **how)
  )
  with_adapters = {"lora.rank": 2, "lora.base_dtype": "bfloat16"}
  c = of(base, **with_adapters, **{"rewards.outcome_models": (("judge", str(scorer), 1.0),)})
  (judge,) = load.load(make(c), build.model(make(c)))
  assert dtypes(judge.params) == {"float32"}
  for teacher in ("", str(unended)):
    sampled = build.model(
      reward_model.experiment_of_policy(
        make(of(base, **with_adapters, **{"offline.teacher": teacher}))
      )
    )
    assert sampled.decoder.lora is None and dtypes(sampled.load()) == {"float32"}
  asked = sources.model(make(of(base, **with_adapters)), str(unended), None)
  assert asked.decoder.lora is None and dtypes(asked.load()) == {"float32"}


def test_the_base_has_the_dtype_of_its_folder(base, unended):
  for folder, dtype in ((base, "float32"), (unended.parent / "base", "bfloat16")):
    assert dtypes(build.model(make(of(folder, **{"lora.rank": 2})), jax.devices()[:1]).load()) == {
      dtype
    }
  section = make(settings()).lora
  assert (
    adapters.base_dtype(section, "") == "bfloat16"
    and adapters.base_dtype(dataclasses.replace(section, base_dtype="float32"), "") == "float32"
  )


@pytest.mark.long
def test_killed_it_goes_on_bit_for_bit(base, tmp_path):
  of_base = {"init_from": str(base), "model.variant": "", "tokenizer": "", "lora.rank": 2}
  small = {
    "steps": 4,
    "checkpoint.every": 2,
    "eval.problems": 8,
    "eval.batch": 8,
    "eval.samples": 0,
  }
  runs = resume_test.Runs(
    tmp_path, tiny_runs.source(of_base | small | {"eval.reward": tiny_runs.PARITY})
  )
  runs.finish("undisturbed")
  expected = runs.numbers("undisturbed")
  runs.struck("killed", "learn", 4)
  runs.finish("killed")
  runs.assert_as_if_not_struck("killed", expected)
  adapters = [
    (runs.folder / name / "adapter/adapter_model.safetensors").read_bytes()
    for name in ("undisturbed", "killed")
  ]
  assert adapters[0] == adapters[1]
