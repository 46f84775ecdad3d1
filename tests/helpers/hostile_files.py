"""Hostile model folders that are unlike one another: file by file, what is wrong and a piece of
what is then said.
"""

import json
import pickle

import hostile_edits as e
import numpy as np
from hostile_edits import (
  CONFIG,
  DECODER,
  GENERATION,
  INDEX,
  TOKENIZER,
  TOKENIZER_CONFIG,
  WEIGHTS,
  Case,
)

_Q = "model.layers.1.self_attn.q_proj.weight"
_BIG = "a\nb" * 99
_SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
_REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaa"}
_ADDED = {
  "single_word": False,
  "lstrip": False,
  "rstrip": False,
  "normalized": False,
  "special": True,
}
_POST = {
  "type": "TemplateProcessing",
  "single": [{"SpecialToken": {"id": "q", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
  "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
  "special_tokens": {"q": {"id": "q", "ids": [4_000_000_000], "tokens": ["q"]}},
}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3 |= {"original_max_position_embeddings": 64}


def _tokenizer(**changes: object) -> e.Edit:
  return e.set_keys(TOKENIZER, **changes)


def _rope(**changes: object) -> e.Edit:
  return e.set_keys(CONFIG, rope_parameters=_LLAMA3 | changes)


def _span(name: str, *offsets: int) -> e.Edit:
  return e.in_header(lambda h: h[name].update(data_offsets=list(offsets)))


def _names(*names: str) -> e.Edit:
  return e.write(INDEX, json.dumps({"weight_map": {f"t{i}": name for i, name in enumerate(names)}}))


CASES = {
  "config: odd heads": Case(e.set_keys(CONFIG, head_dim=7), "head_dim=7; an even number"),
  "config: odd heads by division": Case(
    e.set_keys(CONFIG, model_type="llama", hidden_size=36, head_dim=None), "=9;"
  ),
  "config: no heads left": Case(
    e.set_keys(CONFIG, model_type="llama", hidden_size=2, head_dim=None), "head_dim=0"
  ),
  "config: heads that do not divide": Case(
    e.set_keys(CONFIG, num_key_value_heads=3), "4 heads do not divide over 3"
  ),
  "config: 3 layers": Case(
    e.set_keys(CONFIG, num_hidden_layers=3), "num_hidden_layers=3, the weights have 2"
  ),
  "config: most layers": Case(
    e.set_keys(CONFIG, num_hidden_layers=10_000), "=10000, the weights have 2"
  ),
  "config: a million layers": Case(
    e.set_keys(CONFIG, num_hidden_layers=10**6), "num_hidden_layers=1000000;"
  ),
  "config: most of everything": Case(
    e.set_keys(
      *(CONFIG,),
      vocab_size=2**24,
      hidden_size=2**20,
      num_attention_heads=2**16,
      head_dim=2**16,
      intermediate_size=2**22,
    ),
    "config.json asks [16777216, 1048576]",
  ),
  "config: a larger vocabulary": Case(
    e.set_keys(CONFIG, vocab_size=129), "config.json asks [129, 32]"
  ),
  "config: an unknown model": Case(e.set_keys(CONFIG, model_type=_BIG), "model_type 'a\\nb"),
  "config: auto_map": Case(
    e.set_keys(CONFIG, model_type="mine", auto_map={"AutoModel": "evil.Model"}),
    "model_type 'mine' is not supported",
  ),
  "config: stop token beyond the model": Case(
    e.set_keys(CONFIG, eos_token_id=128), "128 is none of the model's 128"
  ),
  "config: llama3 without its factor": Case(
    e.set_keys(CONFIG, rope_parameters={"rope_type": "llama3"}),
    "without 'factor'; a finite number above 0",
  ),
  "config: rope factor 0": Case(
    _rope(factor=0), "rope_parameters.factor=0; a finite number above 0"
  ),
  "config: rope factor text": Case(
    _rope(low_freq_factor="1"), "rope_parameters.low_freq_factor='1'"
  ),
  "config: rope factors equal": Case(_rope(high_freq_factor=1.0), "a larger high_freq_factor"),
  "config: rope length": Case(
    _rope(original_max_position_embeddings=-5), "original_max_position_embeddings=-5"
  ),
  "config: fewer than no positions": Case(
    e.set_keys(CONFIG, max_position_embeddings=-1), "max_position_embeddings=-1"
  ),
  "config: part of the heads": Case(
    e.set_keys(CONFIG, partial_rotary_factor="half"), "partial_rotary_factor='half'"
  ),
  "config: is a folder": Case(
    e.several(e.remove(DECODER), e.make_folder(CONFIG)), "no config.json"
  ),
  "config: is a pipe": Case(e.several(e.remove(DECODER), e.make_pipe(CONFIG)), "no config.json"),
  "config: links to itself": Case(
    e.several(e.remove(DECODER), e.remove(CONFIG), lambda f: (f / CONFIG).symlink_to(CONFIG)),
    "no config.json",
  ),
  "generation: stop token beyond": Case(
    e.set_keys(GENERATION, eos_token_id=[0, 500]), "500 is none of the model's"
  ),
  "generation: pad token beyond": Case(
    e.several(
      e.set_keys(TOKENIZER_CONFIG, pad_token=None), e.set_keys(GENERATION, pad_token_id=500)
    ),
    "500 is none",
  ),
  "tokenizer_config: unknown end": Case(
    e.set_keys(TOKENIZER_CONFIG, eos_token="<zz>"), "eos_token='<zz>', which is no"
  ),
  "tokenizer_config: no template": Case(
    e.set_keys(TOKENIZER_CONFIG, chat_template=None), "no chat template"
  ),
  "jinja: latin-1": Case(
    e.write("chat_template.jinja", b"\xe9"), "chat_template.jinja cannot be read"
  ),
  "jinja: long": Case(
    e.write("chat_template.jinja", "x" * 200_000), "chat_template.jinja has text="
  ),
  "jinja: large": Case(
    e.several(e.write("chat_template.jinja", ""), e.grow("chat_template.jinja", 10**9)),
    "at most 10000000 would work",
  ),
  "jinja: a link out": Case(
    lambda f: (f / "chat_template.jinja").symlink_to("/etc/passwd"), "leads out of the folder"
  ),
  "decoder: three factors": Case(
    e.set_keys(DECODER, rope_scaling=[8.0, 1.0, 4.0]), "factor, low_freq_factor"
  ),
  "decoder: odd heads": Case(e.set_keys(DECODER, head_dim=9), "decoder.json has head_dim=9"),
  "decoder: heads": Case(e.set_keys(DECODER, kv_heads=3), "4 heads do not divide over 3"),
  "decoder: a field more": Case(
    e.set_keys(DECODER, colour=1), "unexpected keyword argument 'colour'"
  ),
  "decoder: a field less": Case(e.set_keys(DECODER, width=None), "width"),
  "decoder: null": Case(e.set_keys(DECODER, vocab=e.NULL), "decoder.json cannot be read"),
  "decoder: no attention": Case(e.set_keys(DECODER, attention=None), "decoder.json cannot be read"),
  "decoder: empty attention": Case(
    e.set_keys(DECODER, attention=[]), "decoder.json has attention=[]"
  ),
  "decoder: window": Case(
    e.set_keys(DECODER, attention=[{"window": -1}]), "attention[0].window=-1"
  ),
  "decoder: scale": Case(e.set_keys(DECODER, attention=[{"scale": "x"}]), "attention[0].scale='x'"),
  "decoder: attention's field": Case(
    e.set_keys(DECODER, attention=[{"head": 1}]), "unexpected keyword argument 'head'"
  ),
  "index: no files": Case(_names(), "names no file"),
  "index: nothing": Case(e.write(INDEX, "{}"), "names no file"),
  "index: a list": Case(e.set_keys(INDEX, weight_map=[WEIGHTS]), "weight_map="),
  "index: a text": Case(e.set_keys(INDEX, weight_map=WEIGHTS), "weight_map="),
  "index: numbers": Case(e.set_keys(INDEX, weight_map={"a": 5}), "an object of texts would work"),
  "index: lists": Case(
    e.set_keys(INDEX, weight_map={"a": [WEIGHTS]}), "an object of texts would work"
  ),
  "index: upwards": Case(_names("../model.safetensors"), "'../model.safetensors'"),
  "index: far upwards": Case(
    _names("a/../../../../etc/passwd.safetensors"), "beside it would work"
  ),
  "index: from the root": Case(_names("/etc/model.safetensors"), "'/etc/model.safetensors'"),
  "index: a folder": Case(_names("sub/model.safetensors"), "'sub/model.safetensors'"),
  "index: a zero byte": Case(_names("a\0.safetensors"), "beside it would work"),
  "index: a line": Case(_names("a\nb.safetensors"), "beside it would work"),
  "index: long": Case(_names("a" * 9999 + ".safetensors"), "beside it would work"),
  "index: a pickle": Case(_names("pytorch_model.bin"), "'pytorch_model.bin'"),
  "index: a missing file": Case(_names(WEIGHTS, "b.safetensors"), "b.safetensors is missing"),
  "index: a tensor twice": Case(
    e.several(
      lambda f: (f / "b.safetensors").write_bytes((f / WEIGHTS).read_bytes()),
      _names(WEIGHTS, "b.safetensors"),
    ),
    "which another file has, too",
  ),
  "tokenizer: no model": Case(_tokenizer(model=None), "tokenizer.json has no model"),
  "tokenizer: model is a text": Case(_tokenizer(model="BPE"), "model='BPE'"),
  "tokenizer: unknown model": Case(_tokenizer(model__type="Evil"), "a model of type 'Evil'"),
  "tokenizer: vocabulary list": Case(_tokenizer(model__vocab=[1]), "cannot be read"),
  "tokenizer: no vocabulary": Case(_tokenizer(model__vocab={}, added_tokens=[]), "has 0 tokens"),
  "tokenizer: negative id": Case(_tokenizer(model__vocab={"a": -1}), "integer `-1`"),
  "tokenizer: fractional id": Case(_tokenizer(model__vocab={"a": 0.5}), "cannot be read"),
  "tokenizer: id 2^40": Case(_tokenizer(model__vocab={"a": 2**40}), "cannot be read"),
  "tokenizer: id 2^32-1": Case(
    _tokenizer(model__vocab={"a": 2**32 - 1}), "the largest id 42949672"
  ),
  "tokenizer: id beyond the model": Case(_tokenizer(model__vocab__a=999), "its ids reach 999"),
  "tokenizer: unknown merges": Case(_tokenizer(model__merges=[["q9", "q8"]]), "cannot be read"),
  "tokenizer: added is an object": Case(_tokenizer(added_tokens={"a": 1}), "added_tokens={'a': 1}"),
  "tokenizer: added are texts": Case(_tokenizer(added_tokens=["a"]), "added_tokens=['a']"),
  "tokenizer: added number": Case(
    _tokenizer(added_tokens=[{"id": 1, "content": 5, **_ADDED}]), "[0].content=5"
  ),
  "tokenizer: added negative": Case(
    _tokenizer(added_tokens=[{"id": -1, "content": "a", **_ADDED}]), "[0].id=-1"
  ),
  "tokenizer: added giant": Case(
    _tokenizer(added_tokens=[{"id": 2**31, "content": "a", **_ADDED}]), "[0].id=21474"
  ),
  "tokenizer: added half": Case(
    _tokenizer(added_tokens=[{"id": 1, "content": "a"}]), "cannot be read"
  ),
  "tokenizer: too many added": Case(_tokenizer(added_tokens=[{}] * 20_001), "a list of 0 to 20000"),
  "tokenizer: normalizer text": Case(_tokenizer(normalizer="NFC"), "normalizer='NFC'"),
  "tokenizer: a charsmap that ends the program": Case(
    _tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
    "of type 'Precompiled'",
  ),
  "tokenizer: the same in a sequence": Case(
    _tokenizer(
      normalizer={
        "type": "Sequence",
        "normalizers": [{"type": "Precompiled", "precompiled_charsmap": "/"}],
      }
    ),
    "of type 'Precompiled'",
  ),
  "tokenizer: pieces of no length": Case(
    _tokenizer(pre_tokenizer={"type": "FixedLength", "length": 0}), "'FixedLength'"
  ),
  "tokenizer: text that grows": Case(
    _tokenizer(normalizer={"type": "Sequence", "normalizers": [_REPLACE] * 7}),
    "at most 64 times as long",
  ),
  "tokenizer: many parts": Case(
    _tokenizer(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}] * 33}),
    "at most 32 parts",
  ),
  "tokenizer: wrong pattern": Case(
    _tokenizer(pre_tokenizer={**_SPLIT, "pattern": {"Regex": "("}}), "parenthesis"
  ),
  "tokenizer: endless pattern": Case(
    _tokenizer(pre_tokenizer={**_SPLIT, "pattern": {"Regex": "(a+)+$"}}),
    "retry-limit-in-match",
  ),
  "tokenizer: first token of no vocabulary": Case(
    _tokenizer(post_processor=_POST), "no tokens of its vocabulary"
  ),
  "tokenizer: no token for a": Case(
    _tokenizer(
      model={"type": "WordLevel", "vocab": {"<|endoftext|>": 0, "b": 1}, "unk_token": "?"},
      added_tokens=[],
    ),
    "'a' cannot be encoded",
  ),
  "tokenizer: is config.json": Case(
    lambda f: (f / TOKENIZER).write_bytes((f / CONFIG).read_bytes()) and None, "has no model"
  ),
  "tokenizer: is the weights": Case(
    lambda f: (f / TOKENIZER).write_bytes((f / WEIGHTS).read_bytes()) and None, "cannot be read"
  ),
  "tokenizer: missing": Case(e.remove(TOKENIZER), "no tokenizer.json"),
  "weights: missing": Case(
    e.several(e.remove(INDEX), e.remove(WEIGHTS)), "model.safetensors is missing"
  ),
  "weights: a pickle beside": Case(
    e.several(e.remove(INDEX), e.remove(WEIGHTS), e.write("pytorch_model.bin", pickle.dumps([1]))),
    "is a pickle",
  ),
  "weights: a pickle": Case(e.write(WEIGHTS, pickle.dumps({"a": 1})), "is a pickle"),
  "weights: of torch.save": Case(e.write(WEIGHTS, b"PK\x03\x04" + bytes(99)), "is a pickle"),
  "weights: a folder": Case(e.make_folder(WEIGHTS), "is missing"),
  "weights: a pipe": Case(e.make_pipe(WEIGHTS), "is missing"),
  "weights: a link out": Case(e.link(WEIGHTS, "../outside"), "leads out of the folder"),
  "weights: empty": Case(e.write(WEIGHTS, b""), "is corrupt"),
  "weights: seven bytes": Case(e.write(WEIGHTS, bytes(7)), "is corrupt"),
  "weights: cut at the end": Case(e.change(WEIGHTS, lambda b: b[:-1]), "is corrupt"),
  "weights: longer": Case(e.change(WEIGHTS, lambda b: b + b"0"), "is corrupt"),
  "weights: cut in the header": Case(e.change(WEIGHTS, lambda b: b[:99]), "is corrupt"),
  "weights: noise": Case(e.write(WEIGHTS, b"\xff" * 999), "its header would have"),
  "weights: header of 2^63": Case(
    e.header("{}", 2**63), "its header would have 9223372036854775808 bytes"
  ),
  "weights: header of 50 MB": Case(
    e.several(e.header("{}", 50 * 10**6), e.grow(WEIGHTS, 60 * 10**6)),
    "its header would have 50000000 bytes",
  ),
  "weights: header of nothing": Case(e.header("", 0), "is corrupt"),
  "weights: header a list": Case(e.header("[]"), "is corrupt"),
  "weights: header a text": Case(e.header('"a"'), "is corrupt"),
  "weights: header cut": Case(e.header('{"a": {"dtype": "F32", '), "is corrupt"),
  "weights: header deep": Case(e.header('{"a":' * 50_000 + "1" + "}" * 50_000), "is corrupt"),
  "weights: header without tensors": Case(e.header("{}"), "the weights have 0"),
  "weights: offsets beyond the file": Case(_span(_Q, 0, 10**12), "is corrupt"),
  "weights: offsets that overlap": Case(_span(_Q, 0, 8192), "is corrupt"),
  "weights: offsets turned round": Case(_span(_Q, 8192, 0), "is corrupt"),
  "weights: offsets negative": Case(_span(_Q, -8192, 0), "is corrupt"),
  "weights: one offset": Case(_span(_Q, 0), "is corrupt"),
  "weights: another shape": Case(e.in_header(lambda h: h[_Q].update(shape=[2, 2])), "is corrupt"),
  "weights: shape 2^64": Case(
    e.in_header(lambda h: h[_Q].update(shape=[2**33, 2**33])), "is corrupt"
  ),
  "weights: shape negative": Case(
    e.in_header(lambda h: h[_Q].update(shape=[-1, -1])), "is corrupt"
  ),
  "weights: unknown dtype": Case(e.in_header(lambda h: h[_Q].update(dtype="F3")), "is corrupt"),
  "weights: metadata a list": Case(e.in_header(lambda h: h.update(__metadata__=[1])), "is corrupt"),
  "weights: turned": Case(
    e.in_header(lambda h: h[_Q]["shape"].reverse()), "is [32, 64] in model.safetensors"
  ),
  "weights: flat": Case(
    e.in_header(lambda h: h[_Q].update(shape=[2048])), "is [2048] in model.safetensors"
  ),
  "weights: many dimensions": Case(
    e.in_header(lambda h: h[_Q].update(shape=[64, 32] + [1] * 9999)), "is [64, 32, 1, 1, 1"
  ),
  "weights: integers": Case(
    e.in_header(lambda h: h[_Q].update(dtype="I32")), "is I32; F32, BF16, F16 would work"
  ),
  "weights: one less": Case(e.weight(_Q, None), f"no tensor {_Q}"),
  "weights: one more": Case(
    e.weight("model.layers.0.evil", np.copy), "unexpected tensor model.layers.0.evil"
  ),
  "weights: a name of lines": Case(
    e.weight("a\nb\x1b[2J", np.copy), "unexpected tensor 'a\\nb\\x1b[2J'"
  ),
  "weights: a long name": Case(e.weight("a" * 9999, np.copy), "unexpected tensor 'aaa"),
  "weights: a layer of many digits": Case(
    e.weight(f"model.layers.{'9' * 5000}.x", np.copy), "the weights have 3"
  ),
  "weights: another layer": Case(
    e.weight("model.layers.99999999.x", np.copy), "the weights have 3"
  ),
  "weights: NaN": Case(
    e.weight(_Q, e.with_value(np.nan)), f"{_Q} has 1 weights that are NaN or infinite"
  ),
  "weights: infinity": Case(
    e.weight(_Q, e.with_value(np.inf)), f"{_Q} has 1 weights that are NaN or infinite"
  ),
  "weights: minus infinity": Case(
    e.weight(_Q, e.with_value(-np.inf)), "has 1 weights that are NaN or infinite"
  ),
  "weights: NaN in float16": Case(
    e.weight(_Q, e.with_value(np.nan, "float16")), "has 1 weights that are NaN"
  ),
  "weights: NaN in bfloat16": Case(
    e.weight(_Q, e.with_value(np.nan, "bfloat16")), "has 1 weights that are NaN"
  ),
  "weights: all NaN": Case(
    e.weight("model.norm.weight", lambda x: x * np.nan), "model.norm.weight has 32 weights"
  ),
}
