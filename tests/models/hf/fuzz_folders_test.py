"""Random content of a model's folder: it works or is a `GrpoError` of one line, never anything
else.
"""

import functools
import json
import pathlib
import struct
import tempfile
from collections.abc import Callable
from typing import Any

import jax
from hostile_edits import (
  CONFIG,
  DECODER,
  GENERATION,
  INDEX,
  TOKENIZER,
  TOKENIZER_CONFIG,
  WEIGHTS,
  good_files,
)
from hostile_folders import KEYS
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from grpo_jax.distributed import sharding
from grpo_jax.errors import GrpoError
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hf import tensors
from grpo_jax.models.hf.config import read_config
from grpo_jax.setup import defaults
from grpo_jax.tokenizer import reading

fuzzed = settings(
  max_examples=60,
  derandomize=True,
  database=None,
  deadline=10_000,
  suppress_health_check=list(HealthCheck),
)

NUMBERS = (
  st.integers()
  | st.floats()
  | st.sampled_from([0, 1, -1, 2**24, 2**31, 2**63, 2**64, 1e-320, 1e308])
)
VALUES = st.recursive(
  st.none() | st.booleans() | NUMBERS | st.text(max_size=9),
  lambda inner: (
    st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
  ),
  max_leaves=6,
)
BYTES = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=6)
PIECES = (
  "{{ m }}",
  "{% for m in messages %}",
  "{% endfor %}",
  "{{ messages[-1].content }}",
  "{%",
  "%}",
  "{#",
  "'",
  "x",
)
PIECES += (
  "{% if x %}",
  "{% endif %}",
  "{{ x|tojson }}",
  "{{ x.y.z }}",
  "{% set x = [x, x] %}",
  "{{ 9**9**9 }}",
  "\x00",
)


@functools.cache
def layout() -> sharding.Layout:
  return sharding.make_layout(defaults.get_config().mesh, jax.devices()[:1])


def try_with(file: str, data: bytes, use: Callable[[pathlib.Path], Any]) -> None:
  """Uses a folder with that in a file's place."""
  with tempfile.TemporaryDirectory() as parent:
    folder = pathlib.Path(parent) / "m"
    folder.mkdir()
    for name, content in (good_files() | {file: data}).items():
      if name != DECODER:
        (folder / name).write_bytes(content)
    try:
      use(folder)
    except GrpoError as error:
      assert str(error).isprintable() and len(str(error)) < 600


def use_weights(folder: pathlib.Path) -> None:
  decoder = Decoder(read_config(folder), layout())
  tensors.check(folder, decoder.shapes())
  tensors.load(folder, decoder)


def use_shape(folder: pathlib.Path) -> None:
  tensors.check(folder, Decoder(read_config(folder), layout()).shapes())


def use_tokenizer(folder: pathlib.Path) -> None:
  tokenizer = reading.load(folder)
  assert all(0 <= i < 2**31 for i in (*tokenizer.eos_ids, tokenizer.pad_id))
  tokenizer.decode(tokenizer.encode("one two"))
  tokenizer.render("one")
  tokenizer.render("one", chat=True)


def changed(file: str, key: str, value: Any) -> bytes:
  """A JSON file of the folder with another value at `key`; `a__b` is b in a."""
  top = json.loads(good_files()[file])
  *outer, last = key.split("__")
  functools.reduce(lambda x, k: x.setdefault(k, {}), outer, top)[last] = value
  return json.dumps(top).encode()


def spoiled(file: str, edits: list[tuple[int, int]]) -> bytes:
  """A file of the folder with other bytes here and there."""
  data = bytearray(good_files()[file])
  for place, byte in edits:
    data[place % len(data)] = byte
  return bytes(data)


@fuzzed
@given(st.sampled_from(sorted(KEYS[CONFIG])), VALUES)
@example("rope_parameters", {"rope_type": "llama3", "factor": 8})
@example("head_dim", 2**16)
def test_config(key, value):
  try_with(CONFIG, changed(CONFIG, key, value), use_shape)


@fuzzed
@given(st.sampled_from([CONFIG, TOKENIZER_CONFIG, GENERATION]), BYTES)
def test_bytes_of_a_json_file(file, edits):
  try_with(file, spoiled(file, edits), use_shape if file == CONFIG else use_tokenizer)


@fuzzed
@given(st.sampled_from([TOKENIZER_CONFIG, GENERATION]), st.data())
def test_tokenizer_config(file, data):
  key, value = data.draw(st.sampled_from(sorted(KEYS[file]))), data.draw(VALUES)
  try_with(file, changed(file, key, value), use_tokenizer)


@fuzzed
@given(st.lists(st.sampled_from(PIECES), max_size=9))
def test_chat_template(pieces):
  try_with(
    TOKENIZER_CONFIG, changed(TOKENIZER_CONFIG, "chat_template", "".join(pieces)), use_tokenizer
  )


@fuzzed
@given(
  VALUES
  | st.dictionaries(
    st.text(max_size=5), st.text(max_size=9).map("{}.safetensors".format), max_size=3
  )
)
def test_index(value):
  try_with(INDEX, json.dumps({"weight_map": value}).encode(), use_shape)


@fuzzed
@given(BYTES, st.booleans())
@example([(7, 255)], False)
@example([(0, 0), (1, 0)], False)
def test_bytes_of_weights(edits, in_header):
  size = struct.unpack("<Q", good_files()[WEIGHTS][:8])[0]
  edits = [(place % (8 + size), byte) for place, byte in edits] if in_header else edits
  try_with(WEIGHTS, spoiled(WEIGHTS, edits), use_weights)


@fuzzed
@given(BYTES)
def test_bytes_of_a_tokenizer(edits):
  try_with(TOKENIZER, spoiled(TOKENIZER, edits), use_tokenizer)


PLACES = (
  "model__vocab",
  "model__type",
  "model__merges",
  "model__unk_token",
  "model__dropout",
  "model",
  "added_tokens",
)
PLACES += (
  "normalizer",
  "pre_tokenizer",
  "post_processor",
  "decoder",
  "truncation",
  "padding",
  "version",
)
PLACES += (
  "model__byte_fallback",
  "pre_tokenizer__pattern",
  "pre_tokenizer__behavior",
  "pre_tokenizer__type",
)
TYPES = (
  *(
    "NFC",
    "Replace",
    "Prepend",
    "Strip",
    "Sequence",
    "Split",
    "Digits",
    "ByteLevel",
    "Metaspace",
    "CTC",
  ),
  "BPE",
)


@fuzzed
@given(
  st.sampled_from(PLACES),
  VALUES
  | st.fixed_dictionaries({"type": st.sampled_from(TYPES)})
  | st.dictionaries(st.text(max_size=3), st.integers(-1, 2**33), max_size=3)
  | st.builds(
    lambda kind, more: {"type": kind, **more},
    st.sampled_from(TYPES),
    st.dictionaries(
      st.sampled_from(
        (
          "pattern",
          "content",
          "prepend",
          "normalizers",
          "behavior",
          "replacement",
          "strip_left",
          "cleanup",
        )
      ),
      VALUES,
      max_size=4,
    ),
  ),
)
def test_parts_of_a_tokenizer(place, value):
  try_with(TOKENIZER, changed(TOKENIZER, place, value), use_tokenizer)
