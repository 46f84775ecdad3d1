"""Writes tiny GGUF files as llama.cpp's converter does, from the random models of families.py."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import families
import numpy as np
import pytest
from small_models import SMALL

from grpo_jax.models.shape import DecoderConfig
from grpo_jax.models.variants import gemma2, gemma3, smollm3

VOCAB = 300
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
PLUS_ONE, PERMUTED = ("gemma", "gemma2", "gemma3"), ("llama", "smollm3")
READ_BY_TRANSFORMERS = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")


def _row(name: str, **changes: Any) -> DecoderConfig:
  return dataclasses.replace(SMALL[name], vocab=VOCAB, **changes)


# Of each architecture: a small model of a shape that a GGUF can say.
MODELS = {
  "llama": _row("test_llama"),
  "qwen2": _row("test_qwen2"),
  "qwen3": _row("test_qwen3"),
  "gemma": _row("test_gemma"),
  "gemma2": _row("test_gemma2", attention=gemma2(window=4, soft_cap=5.0)["attention"]),
  "gemma3": _row("test_gemma3", layers=7, attention=gemma3(window=4)["attention"]),
  "olmo2": _row("test_olmo2"),
  "smollm3": _row("test_smollm3", layers=5, attention=smollm3()["attention"]),
  "phi3": _row("test_phi3"),
}

_NAMES = {
  "model.embed_tokens.": "token_embd.",
  "model.norm.": "output_norm.",
  "lm_head.": "output.",
  "model.layers.": "blk.",
  "input_layernorm": "attn_norm",
  "self_attn.q_proj": "attn_q",
  "self_attn.k_proj": "attn_k",
  "self_attn.v_proj": "attn_v",
  "self_attn.o_proj": "attn_output",
  "self_attn.qkv_proj": "attn_qkv",
  "self_attn.q_norm": "attn_q_norm",
  "self_attn.k_norm": "attn_k_norm",
  "pre_feedforward_layernorm": "ffn_norm",
  "post_feedforward_layernorm": "post_ffw_norm",
  "mlp.gate_up_proj": "ffn_up",
  "mlp.gate_proj": "ffn_gate",
  "mlp.up_proj": "ffn_up",
  "mlp.down_proj": "ffn_down",
}


def weights(architecture: str) -> dict[str, np.ndarray]:
  """Returns the weights of a random model, rounded to bfloat16, by transformers' names."""
  family = {"gemma3": "gemma3_text"}.get(architecture, architecture)
  torch = pytest.importorskip("torch")
  config = MODELS[architecture]
  state = families.model(config, family).state_dict()
  if config.tied:
    state.pop("lm_head.weight", None)
  return {name: x.to(torch.bfloat16).float().numpy() for name, x in state.items()}


def stored(architecture: str, name: str, values: np.ndarray) -> tuple[str, np.ndarray]:
  """Returns the name and the values under which llama.cpp stores a tensor of transformers."""
  config = MODELS[architecture]
  heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(name.split(".")[-2])
  if architecture in PERMUTED and heads:
    halves = values.reshape(heads, 2, config.head_dim // 2, -1)
    values = halves.swapaxes(1, 2).reshape(values.shape)
  if architecture in PLUS_ONE and name.endswith("norm.weight"):
    values = values + np.float32(1)
  post = "post_attention_norm" if config.post_norms else "ffn_norm"
  for theirs, ours in {**_NAMES, "post_attention_layernorm": post}.items():
    name = name.replace(theirs, ours)
  return name, np.ascontiguousarray(values)


def _fill(
  tokens: list[str], kinds: list[int], given: Mapping[str, int], unused: str
) -> tuple[list[str], list[int]]:
  """Returns tokens and kinds with those that are given, and unused ones up to VOCAB."""
  tokens = [*tokens, *(text for text in given if text not in tokens)]
  tokens += [unused.format(i) for i in range(VOCAB - len(tokens))]
  defaults = [*kinds, *[CONTROL] * (VOCAB - len(kinds))]
  return tokens, [given.get(text, kind) for text, kind in zip(tokens, defaults)]


def _add_sentence_pieces(writer: Any, given: Mapping[str, int]) -> None:
  """Adds a vocabulary as that of Gemma: special tokens, bytes and pieces with their scores."""
  tokens = ["<pad>", "<eos>", "<bos>", "<unk>"]
  tokens += [f"<0x{i:02X}>" for i in range(256)]
  tokens += ["ab", "▁ab", "▁", "a", "b", "c", "\n", "<end_of_turn>"]
  kinds = [CONTROL] * 4 + [BYTE] * 256 + [NORMAL] * 7
  tokens, kinds = _fill(tokens, kinds, given, "<unused{}>")
  writer.add_tokenizer_model("llama")
  writer.add_tokenizer_pre("default")
  writer.add_token_list(tokens)
  writer.add_token_scores([-float(i) for i in range(VOCAB)])
  writer.add_token_types(kinds)
  writer.add_bos_token_id(2)
  writer.add_eos_token_id(1)
  writer.add_unk_token_id(3)
  writer.add_pad_token_id(0)
  writer.add_add_bos_token(True)
  writer.add_add_space_prefix(not writer.arch.startswith("gemma"))


def _add_bytes(writer: Any, given: Mapping[str, int]) -> None:
  """Adds a vocabulary as that of Qwen: the byte alphabet, two merges and special tokens."""
  from tokenizers import pre_tokenizers

  tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["ab", "Ġab"]
  tokens += ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
  tokens, kinds = _fill(tokens, [NORMAL] * 258, given, "<|unused{}|>")
  writer.add_tokenizer_model("gpt2")
  writer.add_tokenizer_pre("qwen2")
  writer.add_token_list(tokens)
  writer.add_token_types(kinds)
  writer.add_token_merges(["a b", "Ġ ab"])
  writer.add_eos_token_id(tokens.index("<|im_end|>"))
  writer.add_pad_token_id(tokens.index("<|endoftext|>"))
  writer.add_add_bos_token(False)
  writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")


def write(
  file: pathlib.Path,
  architecture: str,
  drop: tuple[str, ...] = (),
  tokens: Mapping[str, int] | None = None,
  tokenizer: Mapping[str, Any] | None = None,
  sentences: bool | None = None,
  **metadata: Any,
) -> dict[str, np.ndarray]:
  """Writes a file and returns its weights by transformers' names.

  Args:
    file: to write.
    architecture: one of MODELS.
    drop: names in the file of tensors to leave out.
    tokens: further tokens, or other kinds of those that the vocabulary has.
    tokenizer: other values of keys behind "tokenizer."; None leaves a key out.
    sentences: whether the vocabulary has sentence pieces; by the architecture if left out.
    **metadata: further keys behind "ARCHITECTURE.", with __ for a dot.
  """
  gguf = pytest.importorskip("gguf", reason="the library gguf is missing: the extra gguf has it")
  config, model = MODELS[architecture], weights(architecture)
  writer = gguf.GGUFWriter(file, architecture)
  writer.add_context_length(128)
  writer.add_embedding_length(config.width)
  writer.add_block_count(config.layers)
  writer.add_feed_forward_length(config.mlp)
  writer.add_head_count(config.heads)
  writer.add_head_count_kv(config.kv_heads)
  writer.add_key_length(config.head_dim)
  writer.add_value_length(config.head_dim)
  writer.add_rope_dimension_count(config.head_dim)
  writer.add_layer_norm_rms_eps(config.norm_eps)
  writer.add_rope_freq_base(config.rope_theta)
  if config.rope_linear != 1.0:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(config.rope_linear)
  if window := max(config.layer_attention(i).window for i in range(config.layers)):
    writer.add_sliding_window(window)
  if cap := config.attention[0].soft_cap:
    writer.add_attn_logit_softcapping(cap)
  if config.logit_soft_cap:
    writer.add_final_logit_softcapping(config.logit_soft_cap)
  for key, value in metadata.items():
    writer.add_key_value(
      f"{architecture}.{key.replace('__', '.')}",
      value,
      gguf.GGUFValueType.get_type(value),
    )
  if sentences is None:
    sentences = architecture.startswith(("gemma", "llama", "phi3"))
  (_add_sentence_pieces if sentences else _add_bytes)(writer, tokens or {})
  for key, value in (tokenizer or {}).items():
    writer.kv_data[0].pop(f"tokenizer.{key}", None)
    if value is not None:
      kind = gguf.GGUFValueType.get_type(value)
      writer.add_key_value(f"tokenizer.{key}", value, kind)
  for name, values in model.items():
    name, values = stored(architecture, name, values)
    if name not in drop:
      writer.add_tensor(name, values)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return model
