"""Writes the model in a GGUF file as a Hugging Face folder.

    python -m experiments.import_gguf FILE.gguf --out=FOLDER

FOLDER gets the weights in bfloat16 (quantized ones are dequantized), the tokenizer and the end
tokens. It appears when it is complete and can be read by every command that takes a Hugging Face
folder. The extra `gguf` installs what this needs: pip install -e '.[gguf]' -c constraints.txt.
"""

import functools
import json
import math
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags, logging

from experiments import arguments, sources
from experiments.progress import Progress
from grpo_jax.errors import SettingError
from grpo_jax.io import storage

MAGIC = b"GGUF"
MOST = 5 * 1000**3  # bytes of weights in a file
TOKENIZER_BYTES = 50 * 1000**2  # more than the largest tokenizer.json
INSTALL = "pip install -e '.[gguf]' -c constraints.txt"
DTYPE = "bfloat16"
TOKENS = "tokenizer.ggml.tokens"
QUESTION = "Tom has 3 apples and buys 4 more. How many now?"


class Source(NamedTuple):
  """Holds a GGUF file whose header has been read."""

  where: str  # names the file in messages
  file: pathlib.Path
  metadata: dict[str, Any]  # numbers, texts and the list TOKENS, by their keys
  tensors: dict[
    str, Any
  ]  # gguf.ReaderTensor by names in the file, without the scaling of positions
  rope_factors: np.ndarray | None  # [head_dim / 2] float32


def main(argv: list[str]) -> None:
  """Converts the file that the command line names."""
  logging.set_verbosity(logging.WARNING)
  values = flags.FLAGS
  with arguments.one_line_errors(), sources.output() as out:
    file = check(argv[1:], values.out)
    print(f"reading {file}; large vocabularies take half a minute", flush=True)
    written = convert(file, values.out)
    print(f"{values.out}: {written}", file=out)
    print(
      "its tokenizer is rebuilt from the GGUF; where you have the original model's folder, "
      "--config.tokenizer=FOLDER takes that one",
      file=out,
    )
    print(
      f"try it: python -m experiments.sample --path={values.out} --prompt='{QUESTION}'", file=out
    )


def check(operands: list[str], out: str | None) -> pathlib.Path:
  """Returns the file, or refuses a command line that names none, or no place to write."""
  if not operands:
    raise SettingError("FILE is missing: python -m experiments.import_gguf FILE.gguf --out=FOLDER")
  if not out:
    raise SettingError("--out is missing: the folder to write, as in --out=models/1")
  name = operands[0]
  for flag, path in (("FILE", name), ("--out", out)):
    storage.check_disk(flag, path, "a GGUF is converted on a disk")
  sources.check_out(out, [])
  if not storage.is_plain(storage.place(name)):
    what = "a folder" if storage.place(name).is_dir() else "no such file"
    raise SettingError(f"{name}: {what}; give a GGUF file, as in model-q4_k_m.gguf")
  try:
    start = storage.start(storage.place(name), len(MAGIC))
  except OSError as error:
    raise SettingError(f"{name}: cannot be read ({error.strerror})") from error
  if start != MAGIC:
    raise SettingError(f"{name}: is not a GGUF file, which begins with the letters GGUF")
  return pathlib.Path(name)


def convert(file: pathlib.Path, out: str) -> str:
  """Writes the folder, and returns a line that says what it holds."""
  gguf, transformers = _libraries()
  source = _read(file, gguf)

  from grpo_jax.models.hf import gguf as names
  from grpo_jax.models.hf import writing
  from grpo_jax.models.hf.config import parse_config, write_config
  from grpo_jax.models.hf.families import FAMILIES

  family = names.architecture(source.where, source.metadata)
  shapes = {name: _shape(tensor) for name, tensor in source.tensors.items()}
  raw = names.make_config(source.where, source.metadata, shapes, source.rope_factors)
  config = parse_config(source.where, raw)
  renamed = {names.tensor_name(source.where, family, name): name for name in source.tensors}
  decoder = _decoder(config)
  named = {new: shapes[old] for new, old in renamed.items()}
  fused = FAMILIES[family.model_type].fused
  names.check_tensors(source.where, named, decoder.shapes(), config.layers, fused)
  size = 2 * sum(math.prod(shape) for shape in shapes.values())
  _check_room(out, size)
  tokenizer = _tokenizer(source, transformers)
  ids = _special_ids(source.metadata, config.vocab)
  target = storage.absolute(out)
  part = None
  try:
    with writing.replacing(target, last="config.json") as part:
      assert part is not None  # one process
      _save_tokenizer(tokenizer, part)
      known = ids | {"max_position_embeddings": raw["max_position_embeddings"]}
      top = write_config(config, known) | {"dtype": DTYPE, "torch_dtype": DTYPE}
      _write_json(part / "config.json", top)
      _write_json(part / "generation_config.json", ids)

      def read(name: str) -> np.ndarray:
        tensor = source.tensors[renamed[name]]
        values = _dequantize(source.where, gguf, tensor)
        return names.to_hugging_face(family, name, values, config)

      _write_weights(part, {name: math.prod(shape) for name, shape in named.items()}, read, out)
      _check_folder(part, decoder)
  finally:
    if part is not None:
      storage.remove(part)  # what is left of it after an error
  return (
    f"{raw['model_type']}, {size // 2:,} parameters in {DTYPE} ({size / 1e9:.2f} GB), end tokens "
    f"{ids.get('eos_token_id', 'none')}"
  )


def _libraries() -> tuple[Any, Any]:
  """Returns the libraries that read the file, or refuses to work without them."""
  try:
    import gguf
    import torch  # noqa: F401  transformers reads no GGUF without it
    import transformers
  except ImportError as error:
    raise SettingError(
      f"{error.name} is not installed, which the extra gguf has: {INSTALL}"
    ) from error
  try:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
      GGUF_PRE_TOKENIZER_SPLITS,  # noqa: F401  which earlier versions lack
    )
  except ImportError as error:
    raise SettingError(
      f"transformers {transformers.__version__} is installed; GGUF files need 5.23 or newer: "
      f"{INSTALL}"
    ) from error
  transformers.logging.set_verbosity_error()
  return gguf, transformers


def _read(file: pathlib.Path, gguf: Any) -> Source:
  """Returns what the header of the file says; its weights stay in the file."""
  try:
    reader = gguf.GGUFReader(file)
    metadata = {
      key: _value(field)
      for key, field in reader.fields.items()
      if key == TOKENS or not (key.startswith("tokenizer.") and _is_array(field))
    }
  except Exception as error:  # the library raises many kinds
    raise SettingError(
      f"{file}: is truncated or damaged ({' '.join(str(error).split())[:120]}); download it again"
    ) from error
  tensors = {tensor.name: tensor for tensor in reader.tensors}
  factors = tensors.pop("rope_freqs.weight", None)
  return Source(str(file), file, metadata, tensors, None if factors is None else factors.data)


def _is_array(field: Any) -> bool:
  return bool(field.types) and field.types[0].name == "ARRAY"


def _value(field: Any) -> Any:
  """Returns the value of a field; a float32 as the decimal number that it was rounded from."""
  if field.types and field.types[0].name == "FLOAT32":
    return float(str(field.parts[-1][0]))
  return field.contents()


def _shape(tensor: Any) -> tuple[int, ...]:
  """Returns a tensor's shape, rows first; the file has it the other way round."""
  return tuple(int(n) for n in reversed(tensor.shape))


def _decoder(config: Any) -> Any:
  from grpo_jax.distributed import sharding
  from grpo_jax.models.decoder import Decoder
  from grpo_jax.setup import defaults

  return Decoder(config, sharding.make_layout(defaults.get_config().mesh))


def _check_room(out: str, size: int) -> None:
  """Refuses a disk that has no room for the folder."""
  place = pathlib.Path(out).absolute()
  there = next(parent for parent in (place, *place.parents) if parent.exists())
  free, needed = shutil.disk_usage(there).free, size + TOKENIZER_BYTES
  if free < needed:
    raise SettingError(
      f"--out={out!r}: the folder needs {needed / 1e9:.1f} GB, and its disk has "
      f"{free / 1e9:.1f} GB left; a folder of another disk would work"
    )


def _tokenizer(source: Source, transformers: Any) -> Any:
  """Returns the tokenizer of the file as transformers builds it, mended."""
  from transformers.integrations import gguf as transformers_gguf
  from transformers.integrations.gguf import gguf_tokenizer_mapping

  from grpo_jax.models.hf import gguf_tokenizer

  model, before = (source.metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
  known = {"gpt-2", "olmo", *gguf_tokenizer_mapping.GGUF_PRE_TOKENIZER_SPLITS}
  if model == "gpt2" and before not in known:
    raise SettingError(
      f"{source.where}: tokenizer.ggml.pre={before!r} is not known to transformers, which would "
      f"split texts otherwise; one of {', '.join(sorted(known))} would work"
    )
  begins = gguf_tokenizer.adds_begin(source.metadata)
  try:
    family, parts, settings = transformers_gguf.get_gguf_tokenizer(str(source.file))
    backend, _ = transformers_gguf.convert_gguf_tokenizer(family, parts)
    backend = gguf_tokenizer.mend(backend, source.metadata, source.metadata.get(TOKENS, []))
    settings |= {} if begins is None else {"add_bos_token": begins}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **settings)
  except Exception as error:  # transformers raises many kinds
    raise SettingError(
      f"{source.where}: its tokenizer cannot be converted ({' '.join(str(error).split())[:200]})"
    ) from error


def _save_tokenizer(tokenizer: Any, folder: storage.Path) -> None:
  """Writes the tokenizer's files as both transformers 4 and 5 read them."""
  try:
    tokenizer.save_pretrained(folder)
  except OSError:
    raise
  except Exception as error:  # tokenizers raises no other kind where the disk is full
    raise OSError(str(error)) from error
  file = folder / "tokenizer_config.json"
  saved = json.loads(file.read_text())
  kept = {key: value for key, value in saved.items() if key not in ("is_local", "local_files_only")}
  _write_json(file, kept | {"tokenizer_class": "PreTrainedTokenizerFast"})


def _special_ids(metadata: Mapping[str, Any], vocab: int) -> dict[str, Any]:
  """Returns the ids of the tokens that begin, end and pad, as config.json has them."""
  from grpo_jax.models.hf import gguf_tokenizer

  ends = gguf_tokenizer.end_tokens(metadata, metadata.get(TOKENS, []))
  ends = [i for i in ends if i < vocab]
  ids = {"eos_token_id": ends[0] if len(ends) == 1 else ends} if ends else {}
  for name, key in (("bos_token_id", "bos_token_id"), ("pad_token_id", "padding_token_id")):
    token = metadata.get(f"tokenizer.ggml.{key}")
    if token is not None and token < vocab:
      ids[name] = token
  return ids


def _write_json(file: storage.Path, values: dict[str, Any]) -> None:
  file.write_text(json.dumps(values, indent=2) + "\n")


def _write_weights(
  folder: storage.Path, sizes: dict[str, int], read: Callable[[str], np.ndarray], out: str
) -> None:
  """Writes all tensors, at most `MOST` bytes to a file, and shows how far it is.

  Args:
    folder: to write to.
    sizes: numbers in each tensor, by its name.
    read: returns a tensor by its name.
    out: names the folder in the progress.
  """
  import ml_dtypes

  from grpo_jax.models.hf.headers import INDEX, SINGLE
  from grpo_jax.models.hf.writing import save_tensors

  files: list[list[str]] = [[]]
  for name, size in sizes.items():
    if files[-1] and 2 * (size + sum(sizes[other] for other in files[-1])) > MOST:
      files.append([])
    files[-1].append(name)
  titles = [f"model-{n:05}-of-{len(files):05}.safetensors" for n in range(1, len(files) + 1)]
  titles = [SINGLE] if len(files) == 1 else titles
  done = 0
  with Progress(sum(sizes.values()), 0) as bar:
    for title, content in zip(titles, files, strict=True):
      tensors = {}
      for name in content:
        tensors[name] = np.ascontiguousarray(read(name).astype(ml_dtypes.bfloat16))
        done += sizes[name]
        bar.show(done, f"writing {out}")
      save_tensors(folder / title, tensors)
  if len(files) > 1:
    places = {name: title for title, names in zip(titles, files, strict=True) for name in names}
    total = {"total_size": 2 * sum(sizes.values())}
    _write_json(folder / INDEX, {"metadata": total, "weight_map": places})


def _dequantize(where: str, gguf: Any, tensor: Any) -> np.ndarray:
  """Returns a tensor's weights in float32, rows first."""
  try:
    values = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(_shape(tensor))
  except NotImplementedError as error:
    raise SettingError(
      f"{where}: {tensor.name} is quantized as {tensor.tensor_type.name}, which the library gguf "
      "does not read; Q4_K, Q8_0, F16 or BF16 would work"
    ) from error
  if not np.isfinite(values).all():
    raise SettingError(
      f"{where}: {tensor.name} has weights that are NaN or infinite; download it again"
    )
  return values


def _check_folder(folder: storage.Path, decoder: Any) -> None:
  """Reads the folder as this project does, so that a bad one never gets its name."""
  from grpo_jax.models.hf import tensors
  from grpo_jax.models.hf.config import read_config
  from grpo_jax.tokenizer import reading

  if read_config(folder) != decoder.config:
    raise SettingError(f"{folder}: config.json is not what was written; please report this")
  tensors.check(folder, decoder.shapes())
  tensors.check_tokenizer(reading.load(folder), decoder.config)


if __name__ == "__main__":
  flags.DEFINE_string("out", None, "The Hugging Face folder to write: a new or an empty one.")
  app.run(main, flags_parser=functools.partial(arguments.parse_flags, operands=1))
