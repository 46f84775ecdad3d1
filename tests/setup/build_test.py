"""The model and data of a run."""

import pytest

from grpo_jax.errors import CheckpointError, SettingError
from grpo_jax.loops import collector
from grpo_jax.setup import build, references
from grpo_jax.setup.experiment import make
from grpo_jax.tokenizer import making


def test_a_special_token_that_the_model_cannot_embed(config):
  """Gemma 3's text models have such a tokenizer: it is refused only where a template uses the
  token.
  """
  model = build.model(make(config))
  vocab = model.tokenizer.vocab_size
  how = {"template": "{question}" + making.END, "chat": False, "system": "", "arguments": ()}
  assert build._render(model.tokenizer, vocab, how, "", "has 4")
  special = model.tokenizer.special_id(making.END)
  with pytest.raises(
    SettingError, match=f"data.template: the token {special} of the prompt is none of the model's"
  ):
    build._render(model.tokenizer, special, how | {"template": making.END + "{question}"}, "", "")


def test_a_chat_without_a_template(config):
  config.data.chat = True
  with pytest.raises(SettingError, match="data.chat=True: this tokenizer has no chat template"):
    collector.make_collector(make(config), build.model(make(config)))


@pytest.mark.parametrize("setting", ["ref_from", "init_from"])
def test_a_run_without_a_checkpoint_gives_no_weights(config, tmp_path, setting):
  build.describe(build.model(make(config)), str(tmp_path / "model"))
  if setting == "init_from":
    config.init_from, config.tokenizer, config.model.variant = str(tmp_path), "", ""
    with pytest.raises(CheckpointError, match="init_from=.*this run has no complete checkpoint"):
      build.model(make(config))
  else:
    with pytest.raises(CheckpointError, match="ref_from=.*this run has no complete checkpoint"):
      references.check_source(str(tmp_path), build.model(make(config)), "ref_from")
  with pytest.raises(SettingError, match="offline.teacher='gone': no such folder"):
    references.check_source("gone", None, "offline.teacher")
