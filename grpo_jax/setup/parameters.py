"""Parameter trees: where they come from, and what of them is trained.

Where there are adapters (models/lora.py), a learner's state holds them alone. The base under them
is not trained and lies beside it, as it was read from the folder of `init_from`.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from grpo_jax.errors import SettingError
from grpo_jax.io import storage
from grpo_jax.learning.state import CRITIC, MODEL
from grpo_jax.models import heads, limits
from grpo_jax.models.decoder import Decoder, DecoderConfig
from grpo_jax.models.hf.config import read_config
from grpo_jax.models.lora import Lora, join, split
from grpo_jax.run import checkpoint, provenance
from grpo_jax.run.checksums import checksums
from grpo_jax.sandbox import model_folder
from grpo_jax.setup import weights

SHAPE = "decoder.json"  # in DIR/model: the shape of a run's policy
# the learner of loops/iterative.py that may start from a folder of its own
REWARD_MODEL = "reward_model"
REFERENCE = "reference"  # the one that is a copy of the policy


def find_source(init_from: str) -> tuple[str, str]:
  """What `init_from` means: a Hugging Face folder, or the workdir of a run.

  Returns:
    The folder with the shape and the tokenizer ("" for a fresh model), and the run whose last
    checkpoint has the weights ("" where the folder has them: the export of a run that has ended,
    and has not gone on since).
  """
  export, model = storage.place(init_from) / "export", storage.place(init_from) / "model"
  if init_from and (export / "config.json").exists() and not provenance.has_gone_on(init_from):
    return str(export), ""
  if init_from and (model / SHAPE).exists():
    return str(model), init_from
  return init_from, ""


def read_shape(folder: str) -> DecoderConfig:
  """The decoder's shape of a Hugging Face folder, or of the one that `describe` wrote.

  Raises:
    SettingError: there is none, or one that this decoder is not.
  """
  where, path = f"init_from={folder}", storage.place(folder)
  fields = model_folder.read_json(where, path, SHAPE)
  if fields is None:
    return read_config(folder)
  model_folder.check(where, SHAPE, fields, limits.DECODER)
  for i, spec in enumerate(fields.get("attention") or ()):
    model_folder.check(where, SHAPE, spec, limits.ATTENTION, f"attention[{i}].")
  fields = _without_null(fields)
  try:
    shape = DecoderConfig.from_json(fields)
    limits.check_shape(
      where, SHAPE, shape.heads, shape.kv_heads, shape.head_dim, shape.rope_scaling
    )
  except (TypeError, KeyError) as error:  # a field that is missing, null or not a field
    raise SettingError(
      f"{where}: {SHAPE} cannot be read ({model_folder.first_line(error)}); use another run"
    ) from error
  return shape


def _without_null(value: Any) -> Any:
  """Objects without what is null, which counts as not there."""
  if isinstance(value, list):
    return [_without_null(each) for each in value]
  return (
    {k: _without_null(v) for k, v in value.items() if v is not None}
    if isinstance(value, dict)
    else value
  )


def restore(
  run: str,
  decoder: Decoder,
  step: int | None = None,
  left_out: Sequence[str] = (),
  learner: str = checkpoint.LEARNER,
) -> Any:
  """A learner's float32 parameters in a checkpoint of a run, without adapters: those of a run that
  has some are merged.

  Args:
    run: its workdir.
    decoder: of the learner's shape.
    step: of the checkpoint; None: the last one.
    left_out: parts of the tree that are not restored: ("score",) where the run trained a policy.
    learner: its name.

  Raises:
    SettingError: no such checkpoint, or one of another model; the base of its adapters is not what
      it was.
  """
  config = provenance.saved_config(run)
  lora = make_lora(config.get("lora") or {})
  if lora is None:
    return restore_trained(run, decoder, step, left_out, learner)
  scores = decoder.config.scores and "score" not in left_out
  decoder = dataclasses.replace(
    decoder, lora=lora, config=dataclasses.replace(decoder.config, scores=scores)
  )
  trained = restore_trained(run, decoder, step, (), learner)
  source = began_with(config, learner)
  folder, unfinished = find_source(source)
  if unfinished or not storage.place(folder).is_dir():
    raise SettingError(
      f"workdir={run}: its adapters stand on init_from={source!r}, which is not there; put it back"
    )
  headless = ("score",) if scores and not read_shape(folder).scores else ()
  base = split(weights.load(folder, decoder.base, headless, base_dtype(config["lora"], folder)))[0]
  about = checkpoint.about(run, checkpoint.latest(run) if step is None else step)
  owner = checkpoint.LEARNER if learner == REFERENCE else learner  # of the base
  check_base(base, about["extra"].get("references", {}).get(owner, {}), source)
  whole = jax.tree.map(lambda x: x.astype("float32"), decoder.merged(join(base, trained)))
  return without(whole, ("unembed",) if "score" in left_out else ())


def restore_trained(
  run: str,
  decoder: Decoder,
  step: int | None = None,
  left_out: Sequence[str] = (),
  learner: str = checkpoint.LEARNER,
) -> Any:
  """What a checkpoint of a run holds of a learner's parameters: of a decoder with adapters, those
  and heads.

  Arguments and errors: see `restore`.
  """
  wanted = without(abstract(decoder), left_out)
  wanted = wanted if decoder.lora is None else split(wanted)[1]
  return checkpoint.restore_params(run, {MODEL: wanted}, step, learner)[MODEL]


def learners(run: str, step: int) -> list[str]:
  """The names of the learners in a checkpoint of a run.

  Raises:
    SettingError: what the checkpoint says about itself is damaged.
  """
  return sorted({name.partition(".")[0] for name in checkpoint.about(run, step)["arrays"]})


def began_with(config: dict, learner: str) -> str:
  """The folder or run that a learner started from, by the config of its run; "" for fresh weights."""
  of_reward_model = (
    (config.get("iterative") or {}).get("reward_model") if learner == REWARD_MODEL else ""
  )
  return of_reward_model or config.get("init_from") or ""


def make_lora(section: dict | ConfigDict) -> Lora | None:
  """The shape of the adapters that the `lora` section asks for; None: no adapters."""
  return (
    Lora(section["rank"], section["alpha"], tuple(section["modules"]))
    if section.get("rank")
    else None
  )


def base_dtype(section: dict | ConfigDict, folder: str) -> str:
  """The dtype of the base of adapters.

  Args:
    section: the settings `lora`.
    folder: a Hugging Face folder; "": of a model that is not there yet, which hubs have in
      bfloat16.
  """
  if section["base_dtype"] != "same":
    return section["base_dtype"]
  return provenance.weights_dtype(folder) if folder else "bfloat16"


def check_base(base: Any, pin: dict[str, Any], source: str) -> dict[str, Any]:
  """What pins the base of adapters, which a checkpoint does not hold.

  Args:
    base: the tree.
    pin: what this returned when the run began; {} then.
    source: the folder or run of it.

  Raises:
    SettingError: it has other parameters by now.
  """
  return {
    "base": fingerprint(
      base, pin.get("base"), f"init_from={source!r}", "this run's adapters were trained over"
    )
  }


def fingerprint(tree: Any, known: str | None, setting: str, use: str) -> str:
  """The fingerprint of a tree that a run reads again from its source, and that no checkpoint holds.

  Args:
    tree: as it was read.
    known: what this returned when the run began; None then.
    setting: the one that names the source, and its value, for the message.
    use: what the run did with the tree then, for the message.

  Raises:
    SettingError: the source holds other parameters by now.
  """
  found = "".join(checksums(tree).values())
  if known not in (None, found):
    raise SettingError(
      f"{setting}: does not hold the parameters that {use}; put them back, or begin anew in "
      "another --workdir"
    )
  return found


def without(tree: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
  """The tree without those of its parts."""
  return {name: part for name, part in tree.items() if name not in names}


def abstract(decoder: Decoder) -> Any:
  """The decoder's parameters as ShapeDtypeStructs with their shardings."""
  return jax.tree.map(_struct, decoder.shapes(), decoder.shardings())


def _struct(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def with_fresh_head(load: Callable[[], Any], decoder: Decoder) -> Any:
  """The parameters of a reward model whose decoder is what `load` returns, and whose scores are 0."""
  head = jax.jit(heads.init_score, static_argnums=0, out_shardings=decoder.layout.replicated())
  return load() | {"score": head(decoder.config.width)}


def params(decoder: Decoder, model: Any, critic: bool) -> dict[str, Any]:
  """Returns the trees that an update changes: the model, and a critic that starts from it.

  Args:
    decoder: of the policy or the reward model.
    model: its starting parameters, or, where there are adapters, what is trained
      (`fresh_adapters`). The critic has a copy: an update frees each tree by itself.
    critic: whether there is one.
  """
  trees = {MODEL: model}
  if critic:
    head = jax.jit(heads.init_scalar, static_argnums=0, out_shardings=decoder.layout.replicated())
    trees[CRITIC] = copy(model) | {"value_head": head(decoder.config.width)}
  return trees


@jax.jit
def copy(params: Any) -> Any:
  """A copy of a tree, in the same shardings."""
  return jax.tree.map(jnp.copy, params)


def fresh_adapters(decoder: Decoder, with_heads: Any, key: jax.Array) -> Any:
  """Adapters that change nothing yet, in their shards, and the starting heads in float32.

  Args:
    decoder: of the policy or the reward model.
    with_heads: the heads that it starts with, as `lora.split` returns them; {} for a policy.
    key: of the adapters; the same key makes the same ones.
  """
  plain = dataclasses.replace(decoder, config=dataclasses.replace(decoder.config, scores=False))
  shardings = split(plain.shardings())[1]
  adapters = jax.jit(lambda key: split(plain.init(key))[1], out_shardings=shardings)(key)
  return adapters | jax.tree.map(lambda x: x.astype("float32"), with_heads)


def abstract_params(decoder: Decoder, critic: bool) -> dict[str, Any]:
  """`params` as ShapeDtypeStructs with their shardings."""
  tree = abstract(decoder)
  tree = tree if decoder.lora is None else split(tree)[1]
  if not critic:
    return {MODEL: tree}
  head = jax.eval_shape(functools.partial(heads.init_scalar, decoder.config.width))
  everywhere = decoder.layout.replicated()
  return {
    MODEL: tree,
    CRITIC: tree | {"value_head": jax.tree.map(lambda x: _struct(x, everywhere), head)},
  }


def abstract_base(decoder: Decoder, dtype: str) -> Any:
  """The base of adapters as ShapeDtypeStructs with their shardings; None where there are no
  adapters.
  """
  if decoder.lora is None:
    return None
  base = split(abstract(decoder.base))[0]
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype, sharding=x.sharding), base)
