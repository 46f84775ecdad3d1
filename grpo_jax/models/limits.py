"""Bounds on a model's sizes and on the keys of config.json and of a run's decoder.json.

They are far above any model that this program could run: they keep a wrong number from becoming
hours or gigabytes before the weights are compared with it.
"""

from collections.abc import Sequence

from grpo_jax.config.kinds import Form, Kind, Number, Whole
from grpo_jax.errors import DataError
from grpo_jax.sandbox import model_folder

LAYERS = Whole(1, 10_000)
VOCAB = Whole(1, model_folder.TOKENS)
WIDTH = Whole(1, 2**20)
HEADS = Whole(1, 2**16)
HEAD = Form(  # even, since a rotary position rotates pairs of numbers
  "an even number from 2 to 65536", lambda x: Whole(2, 2**16).fits(x) and x % 2 == 0
)
MLP = Whole(1, 2**22)
THETA = Number(0, 1e18, above=True)
NORM_EPS = Number(0, 1.0, above=True)
FACTOR = Number(0, 1e9, above=True)
WINDOW = Whole(1, 2**31 - 1)
POSITIONS = Whole(0, 2**31 - 1)
SOFT_CAP = Number(0, 1e9, above=True)

ROPE: dict[str, Kind] = {
  "rope_type": model_folder.TEXT,
  "type": model_folder.TEXT,
  "rope_theta": THETA,
  "partial_rotary_factor": Number(0, 1.0, above=True),
  "factor": FACTOR,
  "low_freq_factor": FACTOR,
  "high_freq_factor": FACTOR,
  "original_max_position_embeddings": FACTOR,
}

CONFIG: dict[str, Kind] = {
  "model_type": model_folder.TEXT,
  "architectures": model_folder.list_of(model_folder.TEXT),
  "vocab_size": VOCAB,
  "hidden_size": WIDTH,
  "num_hidden_layers": LAYERS,
  "num_attention_heads": HEADS,
  "num_key_value_heads": HEADS,
  "head_dim": HEAD,
  "intermediate_size": MLP,
  "hidden_act": model_folder.TEXT,
  "hidden_activation": model_folder.TEXT,
  "rms_norm_eps": NORM_EPS,
  "rope_theta": THETA,
  "rope_parameters": model_folder.OBJECT,
  "rope_scaling": model_folder.OBJECT,
  "partial_rotary_factor": Number(0, 1.0, above=True),
  "layer_types": model_folder.list_of(model_folder.TEXT),
  "use_sliding_window": model_folder.SWITCH,
  "sliding_window": WINDOW,
  "max_position_embeddings": POSITIONS,
  "sliding_window_pattern": LAYERS,
  "rope_local_base_freq": THETA,
  "no_rope_layers": model_folder.list_of(Whole(0, 1)),
  "no_rope_layer_interval": LAYERS,
  "attn_logit_softcapping": SOFT_CAP,
  "final_logit_softcapping": SOFT_CAP,
  "query_pre_attn_scalar": FACTOR,
  "tie_word_embeddings": model_folder.SWITCH,
  "eos_token_id": model_folder.TOKEN_IDS,
}

# Fields of DecoderConfig and of AttentionSpec, as `dataclasses.asdict` returns them.
DECODER: dict[str, Kind] = {
  "vocab": VOCAB,
  "width": WIDTH,
  "layers": LAYERS,
  "heads": HEADS,
  "kv_heads": HEADS,
  "head_dim": HEAD,
  "mlp": MLP,
  "rope_theta": THETA,
  "rope_scaling": model_folder.list_of(FACTOR),
  "rope_linear": FACTOR,
  "norm_eps": NORM_EPS,
  "pre_norms": model_folder.SWITCH,
  "post_norms": model_folder.SWITCH,
  "qk_norm": model_folder.SWITCH,
  "qk_norm_whole": model_folder.SWITCH,
  "attention_bias": model_folder.SWITCH,
  "tied": model_folder.SWITCH,
  "norm_plus_one": model_folder.SWITCH,
  "embed_scale": model_folder.SWITCH,
  "activation": Form("silu or gelu_tanh", lambda x: x in ("silu", "gelu_tanh")),
  "attention": model_folder.list_of(model_folder.OBJECT, least=1),
  "logit_soft_cap": Number(0, 1e9),
  "scores": model_folder.SWITCH,
  "family": model_folder.TEXT,
  "context": POSITIONS,
}
ATTENTION: dict[str, Kind] = {
  "window": Whole(0, 2**31 - 1),
  "soft_cap": Number(0, 1e9),
  "scale": Number(0, 1e9, above=True),
  "rope": model_folder.SWITCH,
  "rope_theta": THETA,
}


def check_shape(
  where: str, name: str, heads: int, kv_heads: int, head_dim: int, scaling: Sequence[float] | None
) -> None:
  """Refuses sizes that do not fit one another; `where` is the setting and its value."""
  if not HEAD.fits(head_dim):
    raise DataError(
      f"{where}: {name} makes heads of head_dim={head_dim}; {HEAD.expects} would work"
    )
  if heads % kv_heads:
    raise DataError(f"{where}: {name}: {heads} heads do not divide over {kv_heads} key/value heads")
  if scaling is not None and not (len(scaling) == 4 and scaling[1] < scaling[2]):
    raise DataError(
      f"{where}: {name} has a rope scaling of {model_folder.shown(list(scaling))}; factor, "
      "low_freq_factor, a larger high_freq_factor and original_max_position_embeddings would work"
    )
