"""A row for each Hugging Face family that the decoder can be: the meaning of its `model_type`."""

from typing import NamedTuple

from grpo_jax.aliases import Json

FULL, SLIDING = "full_attention", "sliding_attention"  # entries of config.json's `layer_types`

Values = dict[str, bool | float | str]  # of keys of config.json


class Family(NamedTuple):
  """Lists the flags of DecoderConfig that a `model_type` means, and defaults of config.json."""

  architecture: str
  flags: Json
  defaults: Values
  keys: Values  # keys that transformers reads in addition to the common ones
  hidden_acts: dict[str, str] = {}  # values of `hidden_act` that mean another activation
  # Which layers have the window of `sliding_window`. None: none; 1: all, if it is set; n: all but
  # each n-th, unless `layer_types` says something else.
  windows: int | None = None
  reads: tuple[str, ...] = ()  # keys that not every family reads
  scalings: tuple[str, ...] = ("default", "llama3")  # of rotary positions
  scorer: str = ""  # architecture of a reward model, if its name does not follow the policy's
  fused: bool = False  # the file has one tensor for q, k and v, and one for gate and up


# Official files say gelu and mean the approximation, as transformers assumes.
_TANH = {"gelu": "gelu_pytorch_tanh"}
_SCALE, _SCORES, _LOGITS = (
  "query_pre_attn_scalar",
  "attn_logit_softcapping",
  "final_logit_softcapping",
)
_PATTERN, _LOCAL, _NO_ROPE = "sliding_window_pattern", "rope_local_base_freq", "no_rope_layers"

_GEMMA = {"norm_plus_one": True, "embed_scale": True, "activation": "gelu_tanh"}
_GEMMA_DEFAULTS: Values = {
  "head_dim": 256,
  "tie_word_embeddings": True,
  "hidden_act": "gelu_pytorch_tanh",
}
_GEMMA_KEYS: Values = {"attention_bias": False, "hidden_activation": "gelu_pytorch_tanh"}

FAMILIES = {
  "qwen3": Family(
    "Qwen3ForCausalLM",
    {"qk_norm": True},
    {"head_dim": 128},
    {"attention_bias": False, "use_sliding_window": False},
  ),
  "qwen2": Family("Qwen2ForCausalLM", {"attention_bias": True}, {}, {"use_sliding_window": False}),
  "llama": Family("LlamaForCausalLM", {}, {}, {"attention_bias": False, "mlp_bias": False}),
  "gemma": Family("GemmaForCausalLM", _GEMMA, _GEMMA_DEFAULTS, _GEMMA_KEYS, _TANH),
  "mistral": Family(
    "MistralForCausalLM", {}, {"num_key_value_heads": 8, "sliding_window": 4096}, {}, windows=1
  ),
  "gemma2": Family(
    "Gemma2ForCausalLM",
    {**_GEMMA, "post_norms": True},
    {
      **_GEMMA_DEFAULTS,
      "num_key_value_heads": 4,
      "sliding_window": 4096,
      _SCALE: 256,
      _SCORES: 50.0,
      _LOGITS: 30.0,
    },
    _GEMMA_KEYS,
    _TANH,
    windows=2,
    reads=(_SCALE, _SCORES, _LOGITS),
  ),
  "olmo2": Family(
    "Olmo2ForCausalLM",
    {"pre_norms": False, "post_norms": True, "qk_norm_whole": True},
    {"rms_norm_eps": 1e-5},
    {"attention_bias": False},
  ),
  "gemma3_text": Family(
    "Gemma3ForCausalLM",
    {**_GEMMA, "post_norms": True, "qk_norm": True},
    {
      **{**_GEMMA_DEFAULTS, "num_key_value_heads": 4, "sliding_window": 4096, _SCALE: 256},
      **{"rope_theta": 1e6, _LOCAL: 1e4},
    },
    _GEMMA_KEYS,
    _TANH,
    windows=6,
    reads=(_SCALE, _LOGITS, _PATTERN, _LOCAL),
    scalings=("default", "llama3", "linear"),
    scorer="Gemma3TextForSequenceClassification",
  ),
  "smollm3": Family(
    "SmolLM3ForCausalLM",
    {},
    {"num_key_value_heads": 4, "tie_word_embeddings": True, "rope_theta": 2e6},
    {"attention_bias": False, "mlp_bias": False, "use_sliding_window": False},
    reads=(_NO_ROPE,),
  ),
  "phi3": Family(
    "Phi3ForCausalLM",
    {},
    {"rms_norm_eps": 1e-5},
    {"attention_bias": False},
    windows=1,
    scalings=("default",),
    fused=True,
  ),
}

# Keys for which null in config.json means "none" rather than the family's default.
NONE = ("sliding_window", "num_key_value_heads", _SCORES, _LOGITS)
