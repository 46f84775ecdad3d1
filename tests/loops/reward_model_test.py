"""Outcome reward models: transformers' scores, pairs of samples and of files, what is held out, a
whole run.
"""

import dataclasses
import json
import pathlib
import signal
from typing import Any

import hf_test
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import run_test
import tiny_runs
from ml_collections import ConfigDict
from offline_test import OUTCOMES, L, scored
from small_models import SMALL

from grpo_jax.errors import DataError, SettingError
from grpo_jax.learning import forward
from grpo_jax.loops import offline, reward_model
from grpo_jax.loops.reward_data import pairs
from grpo_jax.loops.run import Run
from grpo_jax.models.hf import tensors
from grpo_jax.models.hf.config import read_config
from grpo_jax.packing.plan import Packing
from grpo_jax.setup import build, checks, defaults
from grpo_jax.setup.experiment import make
from grpo_jax.setup.resolve import resolve
from grpo_jax.types import STOPPED, TRUNCATED, Completion, Example, Prompts

PAD = 95  # in no prompt and no completion

# -- Hugging Face folders


def their_scores(folder: pathlib.Path, prompts: Prompts, completions: np.ndarray) -> np.ndarray:
  """transformers' scores `[P, G]`, all sequences padded on the right in one batch."""
  torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
  model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
  assert model.config.num_labels == 1
  model.config.pad_token_id = PAD
  p, g, n = completions.shape
  ids = np.full((p, g, prompts.tokens.shape[1] + n), PAD)
  for i, j in np.ndindex(p, g):
    whole = [*np.asarray(prompts.tokens[i, : prompts.lengths[i]]), *completions[i, j]]
    ids[i, j, : len(whole)] = whole
  with torch.no_grad():
    return model(torch.tensor(ids.reshape(p * g, -1))).logits.numpy().reshape(p, g)


def our_scores(d: Any, params: Any, prompts: Prompts, completions: np.ndarray) -> np.ndarray:
  tokens, lengths = (
    jnp.asarray(completions, jnp.int32),
    jnp.full(completions.shape[:2], completions.shape[2], jnp.int32),
  )
  run = jax.jit(lambda params: forward.scores(d, params, prompts, tokens, lengths, Packing()))
  return np.asarray(run(params)[:, :, -1])


def batch() -> tuple[Prompts, np.ndarray]:
  prompts, completions = hf_test.batch()
  return dataclasses.replace(prompts, tokens=prompts.tokens % PAD), completions % PAD


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["test_qwen3", "test_qwen2", "test_llama"])
def test_an_export_has_our_scores_in_transformers(name, tied, tmp_path):
  config = dataclasses.replace(SMALL[name], tied=tied, scores=True)
  params = hf_test.randomised(config)
  tensors.save(tmp_path / "m", config, params)
  assert read_config(tmp_path / "m") == config
  assert "lm_head.weight" not in hf_test.stored(tmp_path / "m")
  hf_test.assert_same(tensors.load(tmp_path / "m", hf_test.decoder(config)), params)
  ours = our_scores(hf_test.decoder(config), params, *batch())
  np.testing.assert_allclose(ours, their_scores(tmp_path / "m", *batch()), atol=1e-4, rtol=0)
  assert ours.std() > 0.1


@pytest.mark.parametrize("name", ["test_qwen3", "test_qwen2", "test_llama"])
def test_a_folder_of_transformers_has_its_scores_here(name, tmp_path):
  config, policy = hf_test.theirs(name, False)
  import transformers

  policy.config.num_labels = 1
  model = transformers.AutoModelForSequenceClassification.from_config(policy.config)
  model.model.load_state_dict(policy.model.state_dict())
  model.score.weight.data.normal_(generator=None)
  model.save_pretrained(tmp_path / "m")
  config = dataclasses.replace(config, scores=True)
  assert read_config(tmp_path / "m") == config
  d = hf_test.decoder(config)
  ours = our_scores(d, tensors.load(tmp_path / "m", d), *batch())
  np.testing.assert_allclose(ours, their_scores(tmp_path / "m", *batch()), atol=1e-4, rtol=0)


def test_a_head_with_two_labels_is_refused(tmp_path):
  config = dataclasses.replace(SMALL["test_qwen3"], scores=True)
  tensors.save(tmp_path / "m", config, hf_test.randomised(config))
  hf_test.retensor(tmp_path / "m", **{"score.weight": np.zeros((2, config.width), np.float32)})
  with pytest.raises(DataError, match=r"score.weight is \[2, .* config.json asks \[1, "):
    tensors.check(tmp_path / "m", hf_test.decoder(config).shapes())


# -- pairs of samples


def test_pairs_for_a_reward_model_are_of_samples_that_stopped_and_are_admitted():
  """OUTCOMES are rewards 0.5, 1 and 0 of samples 0, 1 and 2. A reward model's follows, last."""
  group = scored(1, OUTCOMES)
  r = group.rollouts

  def chosen(ended, admitted):
    by_model = [-1.0, 1.0, -1.0]
    more = np.array([[*zip(admitted, by_model)]])
    components = np.concatenate([r.components, more], axis=2)
    given = group._replace(
      rollouts=dataclasses.replace(r, ended=np.array([ended], np.int32), components=components)
    )
    found = pairs.of_samples(given, 0, complete=True, required=r.components.shape[2]).rollouts
    assert found.components.shape[1:] == (2, 2)
    assert set(found.components[..., -1].ravel().tolist()) <= {-1.0, 1.0}
    return (found.tokens[:, :, 0] - 100).tolist()

  assert chosen([STOPPED] * 3, [1.0, 1.0, 1.0]) == [[1, 2]]
  assert chosen([STOPPED, TRUNCATED, STOPPED], [1.0, 1.0, 1.0]) == [[0, 2]]
  assert chosen([STOPPED] * 3, [1.0, 1.0, 0.0]) == [[1, 0]]
  assert chosen([STOPPED] * 3, [1.0, np.nan, 1.0]) == [[0, 2]]
  assert chosen([STOPPED, TRUNCATED, STOPPED], [1.0, 1.0, 0.0]) == []


# -- pairs of a file


def config() -> ConfigDict:
  c = defaults.get_config()
  c.loop, c.steps = "reward_model", 3
  c.tokenizer, c.model.variant = "words", "test_qwen3"
  c.data.arithmetic.size = 64
  c.data.prompts = 4
  c.data.max_prompt_length, c.data.on_long = 16, "cut"
  c.offline.data, c.offline.prompts, c.offline.held_out = "pairs", 8, 4
  c.sampler.group, c.sampler.max_length, c.sampler.stop = 8, L, tuple("0123456789")
  c.objective = defaults.objective("reward_model", c)
  c.learner.lr = 1e-2
  c.eval.every, c.eval.batch = 2, 3
  c.log.writers = ()
  return c


@pytest.fixture(scope="module")
def model():
  return build.model(make(config()), jax.devices()[:1], scores=True)


def write(path: pathlib.Path, lines: list) -> str:
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  return str(path)


def line(n: int, **more: str) -> dict[str, str]:
  return {"prompt": f"{n % 5} + 1", "chosen": f"{n}", "rejected": f"{n} {n}"} | more


@pytest.mark.parametrize(
  "changes, message",
  [
    (
      {"loop": "offline", "offline.held_out": 0},
      "objective.name='reward_model' with loop='offline': trains a reward m",
    ),
    ({"offline.data": "samples"}, "'reward_model' with .*use .*offline.data='pairs'"),
    (
      {"offline.pairs": "x", "offline.require": "format.worked"},
      "offline.require='format.worked': is asked of samples",
    ),
    ({"learner.mu": 2}, "learner.mu=2: data that does not change"),
    ({"sampler.group": 1}, "sampler.group=1 with offline.data='pairs': use at least 2"),
  ],
)
def test_settings_that_do_not_go_together(model, changes, message):
  c = config()
  c.update_from_flattened_dict(changes)
  with pytest.raises(SettingError, match=message):
    checks.check(make(c), model.decoder)


def test_other_objectives_are_refused_by_its_loop(model):
  c = config()
  c.objective = defaults.objective("dpo", c)
  with pytest.raises(
    SettingError, match="objective.name='dpo' with loop='reward_model': use objective=reward_model"
  ):
    checks.check_data(make(c))


# -- a run


def parity(example: Example, completion: Completion) -> float:
  return sum(completion.tokens) % 5 / 4


def short_or_even(example: Example, completion: Completion) -> float:
  return float(len(completion.tokens) < L or sum(completion.tokens) % 2 == 0)


def train(c: ConfigDict, folder: pathlib.Path, stop_after: int = 0) -> pathlib.Path:
  """The command once, on one device; with `stop_after` a SIGTERM comes in that step."""
  make_model, log = build.model, Run.log

  def logged(run: Run, step: int, numbers: dict) -> None:
    log(run, step, numbers)
    if step + 1 == stop_after:
      signal.raise_signal(signal.SIGTERM)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      build, "model", lambda config, scores=False: make_model(config, jax.devices()[:1], scores)
    )
    patch.setattr(Run, "log", logged)
    reward_model.train(resolve(c), str(folder))
  return folder


def of_samples() -> ConfigDict:
  c = config()
  c.rewards.functions = (("parity", "reward_model_test:parity", 1.0),)
  c.offline.require = "reward_model_test:short_or_even"
  return c


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  return train(of_samples(), tmp_path_factory.mktemp("rm") / "whole")


@pytest.mark.slow
def test_a_run_on_a_file_of_pairs(tmp_path):
  c = config()
  c.offline.pairs, c.offline.held_out, c.steps = (
    write(tmp_path / "p.jsonl", [line(n) for n in range(10)]),
    2,
    2,
  )
  c.checkpoint.export = False
  train(c, tmp_path / "m")
  result = json.loads((tmp_path / "m" / "result.json").read_text())
  assert result["pairs_after"] == 4 and result["pair_loss_after"] < result["pair_loss_before"]
  assert "pairs_too_long" in (tmp_path / "m" / "metrics.jsonl").read_text()
  assert not (tmp_path / "m" / "samples.npz").exists()


def numbers(folder: pathlib.Path) -> tuple:
  """What a run leaves, but timings."""
  lines = [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]
  result = json.loads((folder / "result.json").read_text())
  kept = [
    {k: v for k, v in row.items() if not k.startswith(("time/", "tokens_per_s/"))} for row in lines
  ]
  return kept, {k: v for k, v in result.items() if k != "wall_s"}, hf_test.stored(folder / "export")


@pytest.mark.slow
def test_a_run_learns_is_evaluated_and_exported(whole):
  lines, result, weights = numbers(whole)
  assert [row["step"] for row in lines if "loss" in row] == [1, 2, 3]
  assert [row["step"] for row in lines if "eval/pair_accuracy" in row] == [0, 2, 3]
  assert result["pairs_before"] == result["pairs_after"] == 4
  # a fresh head
  assert result["pair_accuracy_before"] == 0.5 and result["pair_brier_before"] == 0.25
  assert result["pair_margin_after"] != 0.0 and np.abs(weights["score.weight"]).max() > 1e-3
  assert not any("moved_nats" in row for row in lines)  # tokens have no probability there


@pytest.mark.slow
def test_held_out_prompts_are_in_no_batch_and_pairs_are_as_required(whole):
  with np.load(whole / "samples.npz") as stored:
    kept = jax.tree.unflatten(jax.tree.structure(offline.template()), list(stored.values()))
  assert (
    kept.lengths.shape == (12, 2)
    and (kept.ended == STOPPED).all()
    and kept.components.shape == (12, 2, 1)
  )
  prompts = [tuple(row[:n]) for row, n in zip(kept.prompts.tokens.tolist(), kept.prompts.lengths)]
  assert len(set(prompts[:4])) == 4 and not set(prompts[:4]) & set(prompts[4:])
  assert ((kept.lengths < L) | (kept.tokens.sum(2) % 2 == 0)).all()
  assert (kept.components[:, 0] > kept.components[:, 1]).all()


@pytest.mark.long
@pytest.mark.slow
def test_stopped_it_goes_on_to_the_same_numbers(whole, tmp_path):
  train(of_samples(), tmp_path / "m", stop_after=1)
  assert not (tmp_path / "m" / "result.json").exists()
  train(of_samples(), tmp_path / "m")
  got, want = numbers(tmp_path / "m"), numbers(whole)
  assert got[:2] == want[:2]
  hf_test.assert_same(got[2], want[2])


@pytest.mark.slow
def test_an_export_is_a_start_for_a_reward_model_and_none_for_a_policy(whole):
  c = config()
  c.init_from, c.model.variant, c.tokenizer = str(whole), "", ""
  params = build.model(make(c), jax.devices()[:1], scores=True).load()
  np.testing.assert_array_equal(params["score"]["weight"], numbers(whole)[2]["score.weight"])
  with pytest.raises(SettingError, match="is a reward model, which samples nothing; give a policy"):
    build.model(make(c), jax.devices()[:1])


def test_a_policy_is_a_start_with_a_fresh_head(tmp_path):
  """Of a folder whose unembedding is not read."""
  config_ = dataclasses.replace(SMALL["test_qwen3"], tied=False)
  params = hf_test.randomised(config_)
  c = config()
  m = build.model(make(c), jax.devices()[:1])
  tensors.save(
    tmp_path / "m", dataclasses.replace(config_, vocab=m.decoder.config.vocab), shrunk(params, m)
  )
  m.tokenizer.save(tmp_path / "m")
  c.init_from, c.model.variant, c.tokenizer = str(tmp_path / "m"), "", ""
  found = build.model(make(c), jax.devices()[:1], scores=True).load()
  assert "unembed" not in found and not np.asarray(found["score"]["weight"]).any()
  hf_test.assert_same(found["layers"], params["layers"])


def test_a_teacher_of_other_tokens_draws_no_samples(tmp_path):
  c = of_samples()
  run_test.save_policy(tmp_path / "p", c, build.model(make(c), jax.devices()[:1]), 1, 2.0)
  c.offline.teacher = str(tmp_path / "p")
  reward_model.sampled_policy(resolve(c))
  tiny_runs.swap_words(tmp_path / "p")
  with pytest.raises(
    SettingError, match="^offline.teacher=.*: its tokenizer reads a text as other"
  ):
    reward_model.sampled_policy(resolve(c))


def test_a_run_without_an_export_is_a_start_too(tmp_path):
  c = config()
  c.eval.problems = 0
  m = build.model(make(c), jax.devices()[:1])
  run_test.save_policy(tmp_path / "p", c, m, 1, 2.0)
  c.init_from, c.model.variant, c.tokenizer = str(tmp_path / "p"), "", ""
  found = build.model(make(c), jax.devices()[:1], scores=True).load()
  assert (
    sorted(found) == ["embed", "final_norm", "layers", "score"]
    and not np.asarray(found["score"]["weight"]).any()
  )
  hf_test.assert_same(found["layers"], jax.tree.map(lambda x: 2 * x, m.load()["layers"]))


def shrunk(params: Any, m: build.Model) -> Any:
  """The parameters for the vocabulary of the model."""
  rows = {
    name: {"weight": jnp.zeros((m.decoder.config.vocab, m.decoder.config.width))}
    for name in ("embed", "unembed")
  }
  return params | rows
