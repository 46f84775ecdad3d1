"""GGUF files as Hugging Face folders: the weights that transformers reads, and a line for bad files."""

import json
import shutil

import gguf_files
import numpy as np
import pytest
import safetensors.numpy

from experiments import import_gguf
from grpo_jax.errors import SettingError, StorageError
from grpo_jax.models.hf.config import read_config
from grpo_jax.tokenizer import reading


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
  """A small GGUF."""
  file = tmp_path_factory.mktemp("gguf") / "m.gguf"
  gguf_files.write(file, "qwen3")
  return file


def tensors(folder):
  return safetensors.numpy.load_file(folder / "model.safetensors")


@pytest.mark.parametrize("architecture", gguf_files.MODELS)
def test_the_folder_has_the_weights_and_the_shape_of_the_model(architecture, tmp_path):
  want = gguf_files.write(tmp_path / "m.gguf", architecture)
  import_gguf.convert(tmp_path / "m.gguf", str(tmp_path / "out"))
  got = tensors(tmp_path / "out")
  assert got.keys() == want.keys()
  for name, values in got.items():
    assert str(values.dtype) == "bfloat16"
    np.testing.assert_allclose(np.float32(values), want[name], rtol=0, atol=1e-6, err_msg=name)
  assert read_config(tmp_path / "out") == gguf_files.MODELS[architecture]
  said = json.loads((tmp_path / "out" / "config.json").read_text())
  assert said["dtype"] == "bfloat16" and said["max_position_embeddings"] == 128


@pytest.mark.parametrize("architecture", gguf_files.READ_BY_TRANSFORMERS)
def test_transformers_reads_the_same_from_the_folder_and_from_the_file(architecture, tmp_path):
  transformers = pytest.importorskip("transformers")
  gguf_files.write(tmp_path / "m.gguf", architecture)
  import_gguf.convert(tmp_path / "m.gguf", str(tmp_path / "out"))
  # It does not read the size of a Qwen 3's heads.
  size = {"head_dim": gguf_files.MODELS[architecture].head_dim} if architecture == "qwen3" else {}
  theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", **size)
  ours, info = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path / "out", dtype="float32", output_loading_info=True
  )
  assert not any(info.values())
  want = theirs.state_dict()
  for name, values in ours.state_dict().items():
    np.testing.assert_allclose(values.numpy(), want[name].float().numpy(), rtol=0, atol=1e-6)
  fast = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
  tokenizer = reading.load(tmp_path / "out")
  for text in ("ab ab", "c\nab  b", "ü ab"):
    assert tokenizer.encode(text) == fast(text, add_special_tokens=False)["input_ids"]


def test_end_tokens_are_those_of_the_file_and_those_that_end_a_turn(qwen3, tmp_path):
  gguf_files.write(tmp_path / "gemma.gguf", "gemma3")
  for file, texts in (
    (tmp_path / "gemma.gguf", ["<eos>", "<end_of_turn>"]),
    (qwen3, ["<|im_end|>", "<|endoftext|>"]),
  ):
    out = tmp_path / file.stem
    import_gguf.convert(file, str(out))
    tokenizer = reading.load(out)
    ids = [tokenizer.special_id(text) for text in texts]
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == ids
    assert json.loads((out / "config.json").read_text())["eos_token_id"] == ids
    assert sorted(tokenizer.eos_ids) == sorted(ids)


def test_a_prompt_begins_as_the_file_says(qwen3, tmp_path):
  """With the begin token of Gemma; Qwen has none."""
  gguf_files.write(tmp_path / "m.gguf", "gemma3")
  import_gguf.convert(tmp_path / "m.gguf", str(tmp_path / "gemma"))
  import_gguf.convert(qwen3, str(tmp_path / "qwen"))
  gemma, qwen = reading.load(tmp_path / "gemma"), reading.load(tmp_path / "qwen")
  plain = {"template": "{question}", "chat": False, "system": "", "arguments": ()}
  assert gemma.render("ab", **plain) == [2, *gemma.encode("ab")]
  assert qwen.render("ab", **plain) == qwen.encode("ab")
  assert qwen.has_chat_template and not gemma.has_chat_template


def test_quantized_weights_are_dequantized(tmp_path, monkeypatch):
  gguf = pytest.importorskip("gguf")
  kind, add = gguf.GGMLQuantizationType.Q8_0, gguf.GGUFWriter.add_tensor

  def add_quantized(writer, name, values):
    if name != "token_embd.weight":
      return add(writer, name, values)
    return add(writer, name, gguf.quantize(values, kind), raw_dtype=kind)

  monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", add_quantized)
  want = gguf_files.write(tmp_path / "m.gguf", "qwen3")["model.embed_tokens.weight"]
  import_gguf.convert(tmp_path / "m.gguf", str(tmp_path / "out"))
  got = np.float32(tensors(tmp_path / "out")["model.embed_tokens.weight"])
  assert 0 < np.abs(got - want).max() < np.abs(want).max() / 100


def test_a_large_model_is_in_several_files(qwen3, tmp_path, monkeypatch):
  import_gguf.convert(qwen3, str(tmp_path / "one"))
  monkeypatch.setattr(import_gguf, "MOST", 20_000)
  import_gguf.convert(qwen3, str(tmp_path / "many"))
  files = sorted((tmp_path / "many").glob("*.safetensors"))
  got = {name: x for file in files for name, x in safetensors.numpy.load_file(file).items()}
  want = tensors(tmp_path / "one")
  assert len(files) > 2 and got.keys() == want.keys()
  assert all(np.array_equal(got[name], want[name]) for name in want)


# -- what the file does not say of its tokenizer


def imported(folder, architecture, turn=("", ""), **options):
  """Returns the tokenizer of an imported file, whose template has texts around a message."""
  begin, end = turn
  template = f"{{% for m in messages %}}{begin}{{{{ m['content'] }}}}{end}{{% endfor %}}"
  options["tokenizer"] = options.get("tokenizer", {}) | {"chat_template": template}
  gguf_files.write(folder / "m.gguf", architecture, **options)
  out = folder / "out"
  import_gguf.convert(folder / "m.gguf", str(out))
  return reading.load(out)


def chat(tokenizer, question="ab"):
  return tokenizer.render(question, template="{question}", chat=True, system="", arguments=())


@pytest.mark.parametrize(
  "architecture, begin, end, kind",
  [
    ("gemma3", "<start_of_turn>", "<end_of_turn>", gguf_files.NORMAL),
    ("qwen3", "<|im_start|>", "<|im_end|>", gguf_files.NORMAL),
    ("llama", "<|im_start|>", "<|im_end|>", gguf_files.USER_DEFINED),
  ],
)
def test_turns_have_their_tokens_whatever_type_the_file_gives_them(
  architecture, begin, end, kind, tmp_path
):
  tokenizer = imported(
    tmp_path,
    architecture,
    turn=(begin, end),
    tokens={begin: kind, end: kind},
    tokenizer={"ggml.eos_token_id": 1},
  )
  ids = [tokenizer.special_id(text) for text in (begin, end)]
  assert chat(tokenizer) == [ids[0], *tokenizer.encode("ab"), ids[1]]
  assert ids[1] in tokenizer.eos_ids
  assert not set(ids) & set(tokenizer.encode(begin + end))


def test_phi_3s_tokens_take_away_the_white_space_after_them(tmp_path):
  roles = ("<|user|>", "<|end|>", "<|assistant|>", "<|endoftext|>")
  tokenizer = imported(
    tmp_path,
    "phi3",
    turn=("<|user|>\n", "<|end|>\n<|assistant|>\n<|endoftext|>\n"),
    tokens=dict.fromkeys(roles, gguf_files.CONTROL),
  )
  user, end, assistant, last = (tokenizer.special_id(text) for text in roles)
  turn = [user, *tokenizer.encode("ab"), end]
  assert chat(tokenizer) == [*turn, assistant, last, *tokenizer.encode("\n")]


@pytest.mark.parametrize(
  "says, tokens, first, later",
  [
    ({}, {}, "▁ab", "▁ab"),
    ({"ggml.add_space_prefix": None}, {}, "▁ab", "▁ab"),
    ({"ggml.add_space_prefix": False}, {}, "ab", "ab"),
    ({}, {"[INST]": gguf_files.CONTROL}, "▁ab", "ab"),
  ],
)
def test_a_space_comes_before_the_texts_that_llama_2_has_one_before(
  says, tokens, first, later, tmp_path
):
  turn = ("ab<eos>", "")
  tokenizer = imported(tmp_path, "llama", turn=turn, tokens=tokens, tokenizer=says)
  pieces = tokenizer.pieces()
  assert [pieces[i] for i in chat(tokenizer)] == [first, "<eos>", later]
  transformers = pytest.importorskip("transformers")
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
  ids = theirs("ab ab", add_special_tokens=False)["input_ids"]
  assert tokenizer.encode("ab ab") == ids and theirs.decode(ids) == "ab ab"
  assert theirs.decode([pieces.index("▁ab")]) == ("ab" if first == "▁ab" else " ab")


@pytest.mark.parametrize("says, begins", [(None, True), (True, True), (False, False)])
def test_llama_3_begins_a_text_and_takes_words_whole(says, begins, tmp_path):
  tokenizer = imported(
    tmp_path,
    "llama",
    sentences=False,
    tokens={"abc": gguf_files.NORMAL, "<|end_of_text|>": gguf_files.CONTROL},
    tokenizer={"ggml.pre": "llama-bpe", "ggml.add_bos_token": says, "ggml.bos_token_id": 259},
  )
  word = tokenizer.pieces().index("abc")
  plain = {"template": "{question}", "chat": False, "system": "", "arguments": ()}
  assert tokenizer.render("abc", **plain) == [*[259] * begins, word]
  assert tokenizer.special_id("<|end_of_text|>") in tokenizer.eos_ids


def test_qwen_composes_characters(tmp_path):
  tokenizer = imported(tmp_path, "qwen2")
  assert tokenizer.encode("u\u0308") == tokenizer.encode("\u00fc")


def test_tokens_outside_the_byte_alphabet_keep_their_ids(tmp_path):
  texts = ("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜end▁of▁sentence｜>")
  begin, user, end = ids = (261, 262, 263)
  tokenizer = imported(
    tmp_path,
    "qwen2",
    turn=("".join(texts[:2]), texts[2]),
    tokens=dict.fromkeys(texts, gguf_files.CONTROL),
    tokenizer={
      "ggml.pre": "deepseek-r1-qwen",
      "ggml.bos_token_id": begin,
      "ggml.eos_token_id": end,
      "ggml.add_bos_token": True,
    },
  )
  assert tuple(map(tokenizer.special_id, texts)) == ids
  assert chat(tokenizer) == [begin, user, *tokenizer.encode("ab"), end]
  assert end in tokenizer.eos_ids and tokenizer.vocab_size == gguf_files.VOCAB


# -- bad input

WRONG = {
  "attention__sliding_window": "qwen3.attention.sliding_window=4 is not supported",
  "expert_count": "qwen3.expert_count=4 is not supported",
  "rope__scaling__original_context_length": "original_context_length=4 is not supported",
}


@pytest.mark.parametrize("key", WRONG)
def test_features_that_a_family_lacks_are_refused_by_name(key, tmp_path):
  gguf_files.write(tmp_path / "m.gguf", "qwen3", **{key: 4})
  refused(tmp_path / "m.gguf", tmp_path / "out", WRONG[key])


def test_another_size_than_the_tensors_have_is_refused(tmp_path):
  gguf_files.write(tmp_path / "m.gguf", "qwen3", drop=("blk.1.ffn_up.weight",))
  refused(tmp_path / "m.gguf", tmp_path / "out", "no tensor for model.layers.1.mlp.up_proj.weight")


def test_a_family_that_is_not_supported_is_refused(tmp_path):
  gguf = pytest.importorskip("gguf")
  writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
  writer.add_tensor("token_embd.weight", np.zeros((2, 2), np.float32))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  refused(tmp_path / "m.gguf", tmp_path / "out", "'mamba' is not supported; llama, qwen2, qwen3, ")


def test_weights_that_are_no_numbers_are_refused_and_nothing_is_left(tmp_path, monkeypatch):
  gguf = pytest.importorskip("gguf")
  add = gguf.GGUFWriter.add_tensor
  monkeypatch.setattr(
    gguf.GGUFWriter, "add_tensor", lambda self, name, x: add(self, name, x * np.float32(np.nan))
  )
  gguf_files.write(tmp_path / "m.gguf", "qwen3")
  refused(tmp_path / "m.gguf", tmp_path / "out", "has weights that are NaN or infinite")


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_refused(share, qwen3, tmp_path):
  whole = qwen3.read_bytes()
  (tmp_path / "m.gguf").write_bytes(whole[: max(4, int(share * len(whole)))])
  refused(tmp_path / "m.gguf", tmp_path / "out", "is truncated or damaged")


def refused(file, out, line):
  """The file is refused with that text, and nothing is left where the folder would be."""
  with pytest.raises(SettingError) as error:
    import_gguf.convert(import_gguf.check([str(file)], str(out)), str(out))
  assert line in str(error.value) and "\n" not in str(error.value)
  assert str(file) in str(error.value)
  assert not list(out.parent.glob("*out*"))


def test_a_command_line_that_names_nothing_to_do_is_refused(tmp_path):
  (tmp_path / "full").mkdir()
  (tmp_path / "full" / "mine.txt").write_text("keep")
  (tmp_path / "m.txt").write_text("a text")
  out = str(tmp_path / "out")
  for operands, place, line in (
    ([], out, "FILE is missing"),
    ([str(tmp_path / "m.txt")], None, "--out is missing"),
    ([str(tmp_path / "none.gguf")], out, "no such file; give a GGUF file"),
    ([str(tmp_path / "full")], out, "a folder; give a GGUF file"),
    ([str(tmp_path / "m.txt")], out, "is not a GGUF file"),
    ([str(tmp_path / "m.txt")], str(tmp_path / "full"), "is there, and not empty"),
    ([str(tmp_path / "m.txt")], str(tmp_path / "m.txt"), "is there, and not empty"),
    (["gs://bucket/m.gguf"], out, "is in a bucket"),
  ):
    with pytest.raises(SettingError, match=line):
      import_gguf.check(operands, place)
  assert (tmp_path / "full" / "mine.txt").read_text() == "keep"


def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch):
  monkeypatch.setitem(__import__("sys").modules, "gguf", None)
  with pytest.raises(SettingError, match=r"gguf is not installed.*pip install -e '\.\[gguf\]'"):
    import_gguf.convert(tmp_path / "m.gguf", str(tmp_path / "out"))


def test_a_version_of_transformers_that_is_too_old_is_named(tmp_path, monkeypatch):
  pytest.importorskip("gguf")
  mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
  monkeypatch.delattr(mapping, "GGUF_PRE_TOKENIZER_SPLITS")
  with pytest.raises(SettingError, match=r"transformers \d.* need 5.23 or newer: pip install"):
    import_gguf.convert(tmp_path / "m.gguf", str(tmp_path / "out"))


def test_a_full_disk_ends_with_a_line_and_leaves_nothing(qwen3, tmp_path, monkeypatch):
  def full(*args, **kwargs):
    raise safetensors.SafetensorError("No space left on device (os error 28)")

  with monkeypatch.context() as patch:
    patch.setattr(safetensors.numpy, "save_file", full)
    with pytest.raises(StorageError, match="cannot be written .*No space left"):
      import_gguf.convert(qwen3, str(tmp_path / "out"))
  assert not list(tmp_path.iterdir())
  usage = shutil.disk_usage(tmp_path)._replace(free=1000)
  monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
  with pytest.raises(SettingError, match="--out=.* needs 0.1 GB, and its disk has 0.0 GB left"):
    import_gguf.convert(qwen3, str(tmp_path / "out"))


@pytest.mark.slow
def test_the_command_says_what_it_wrote_and_how_to_try_it(qwen3, tmp_path, program):
  done = program("experiments.import_gguf", qwen3, f"--out={tmp_path / 'out'}")
  assert done.returncode == 0, done.stderr
  written, rebuilt, tried = done.stdout.splitlines()
  assert written.startswith(f"{tmp_path / 'out'}: qwen3, ")
  assert "--config.tokenizer=FOLDER" in rebuilt
  assert f"--path={tmp_path / 'out'}" in tried
  again = program("experiments.import_gguf", qwen3, f"--out={tmp_path / 'out'}")
  assert again.returncode == 2 and "is there, and not empty" in again.stderr
  asked = program(
    "experiments.sample", f"--path={tmp_path / 'out'}", "--prompt=ab", "--max_length=4"
  )
  assert asked.returncode == 0, asked.stderr
