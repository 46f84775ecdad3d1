"""Every learner of a run from bfloat16 weights, exported from its checkpoints and by the run
itself: bfloat16 again.
"""

import json

import iterative_test
import jax
import numpy as np
import pytest
import safetensors.numpy

from experiments import export
from grpo_jax.loops import iterative
from grpo_jax.models.hf import tensors
from grpo_jax.setup import build
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve


def file(folder):
  """The tensors of a folder, as bytes, by name; all of them are bfloat16."""
  found = safetensors.numpy.load_file(folder / "model.safetensors")
  assert {str(x.dtype) for x in found.values()} == {"bfloat16"}
  said = json.loads((folder / "config.json").read_text())
  assert said["dtype"] == said["torch_dtype"] == "bfloat16"
  return {name: x.tobytes() for name, x in found.items()}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  """A Hugging Face folder in bfloat16."""
  folder = tmp_path_factory.mktemp("weights") / "m"
  model = build.model(make(iterative_test.config(**{"mesh.group": 1})), jax.devices()[:1])
  tensors.save(
    folder, model.decoder.config, model.load(), tokenizer=model.tokenizer, dtype="bfloat16"
  )
  said = json.loads((folder / "config.json").read_text())
  (folder / "config.json").write_text(json.dumps(said | {"of_the_base": 7}))
  return folder


@pytest.fixture(scope="module")
def run(source, tmp_path_factory):
  """Two steps of iterative GRPO, an iteration, on one device."""
  workdir, make = tmp_path_factory.mktemp("run"), build.model
  changes = {
    "init_from": str(source),
    "tokenizer": "",
    "model.variant": "",
    "model.hub": "Qwen/Qwen3-0.6B",
  }
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      build, "model", lambda given, scores=False: make(given, jax.devices()[:1], scores)
    )
    iterative.train(
      resolve(iterative_test.config(steps=2, **changes, **{"mesh.group": 1})), str(workdir)
    )
  return workdir


@pytest.mark.slow
def test_a_run_writes_the_dtype_that_it_began_with(source, run):
  began, trained = file(source), file(run / "export")
  assert began.keys() == trained.keys() and began != trained
  for part in ("export", "reward_model"):
    assert json.loads((run / part / "config.json").read_text())["of_the_base"] == 7
  assert "score.weight" in file(run / "reward_model")
  assert json.loads((run / "config.json").read_text())["model"]["hub"] == ""


@pytest.mark.slow
def test_each_part_is_exported_as_it_is_saved(source, run, tmp_path):
  """The reference is the policy as the iteration began, which is the start of this run."""
  parts = {
    "policy": file(run / "export"),
    "reward_model": file(run / "reward_model"),
    "reference": file(source),
  }
  for part, want in parts.items():
    assert export.export(str(run), None, part, str(tmp_path / part)) == "bfloat16"
    assert file(tmp_path / part) == want, part
  export.export(str(run), 0, "policy", str(tmp_path / "start"))
  assert file(tmp_path / "start") == file(source)

  transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
  judge = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "reward_model")
  assert judge.dtype == torch.bfloat16 and judge.score.weight.shape[0] == 1
  ids = torch.tensor([[5, 6, 7]])
  with torch.no_grad():
    score = judge.eval()(ids, attention_mask=torch.ones_like(ids)).logits
  assert np.isfinite(score.float().numpy()).all()
  for part in ("policy", "reference"):
    assert (
      transformers.AutoModelForCausalLM.from_pretrained(tmp_path / part).dtype == torch.bfloat16
    )
