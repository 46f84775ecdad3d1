"""Groups that are being sampled and may last for more than one step (loops/carried.py).

They are on the host, whole on every process: they can be chosen, joined, dealt out over the shards
of the sampler, and written as JSON.

Shape letters: N groups, G samples of each, L completion tokens.
"""

import base64
import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from grpo_jax.aliases import Json
from grpo_jax.errors import DataError
from grpo_jax.sampling.begun import Begun
from grpo_jax.sampling.episodes import Episodes
from grpo_jax.types import Example, Prompts


class Groups(NamedTuple):
  """Groups that are being sampled."""

  episodes: Episodes  # [N, ...]
  draws: np.ndarray  # [N] int32, the number of each group: how many were drawn before it
  born: np.ndarray  # [N] int32, the step in which it was drawn


def chosen(groups: Groups, places: Sequence[int] | np.ndarray) -> Groups:
  """Returns copies of the groups at these places, in this order."""
  index = np.asarray(places, int)
  new = {old: place for place, old in enumerate(index.tolist())}

  def take(x: Any) -> Any:
    if isinstance(x, list):
      return [x[i] for i in index]
    if isinstance(x, dict):  # by (prompt, sample)
      return {(new[p], g): value for (p, g), value in x.items() if p in new}
    return jax.tree.map(lambda array: array[index], x)

  fields = {name: take(value) for name, value in vars(groups.episodes).items()}
  return Groups(Episodes(**fields), groups.draws[index], groups.born[index])


def joined(first: Groups, second: Groups) -> Groups:
  """Returns the groups of both, in order."""
  count = len(first.draws)

  def join(a: Any, b: Any) -> Any:
    if isinstance(a, list):
      return a + b
    if isinstance(a, dict):
      return a | {(p + count, g): value for (p, g), value in b.items()}
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), a, b)

  a, b = vars(first.episodes), vars(second.episodes)
  fields = {name: join(a[name], b[name]) for name in a}
  return Groups(
    Episodes(**fields),
    np.concatenate([first.draws, second.draws]),
    np.concatenate([first.born, second.born]),
  )


def dealt(count: int, shards: int) -> np.ndarray:
  """Returns an order in which each shard, a block of places, gets one of each `shards` groups."""
  return np.arange(count).reshape(-1, shards).T.reshape(-1)


def needs_more(unfinished: np.ndarray, due: np.ndarray, shards: int, carry: int) -> bool:
  """Returns whether more has to be sampled, as the sampler decides it (decode_loop.needs_more).

  Args:
    unfinished: `[N, G]`.
    due: `[N]`, groups that may not be carried.
    shards: blocks of places that are sampled side by side.
    carry: groups, of all shards, that may be left.
  """
  left = unfinished.any(axis=1)
  return bool((left & due).any() or (left.reshape(shards, -1).sum(axis=1) > carry // shards).any())


def with_stop_texts(begun: Begun[np.ndarray], table: np.ndarray) -> Begun[np.ndarray]:
  """Returns begun samples with the states of the stop texts after their tokens.

  Args:
    begun: samples of one turn.
    table: `[states, V]`, see tokenizer/stop_texts.py.
  """
  matched = np.zeros_like(begun.lengths)
  for t in range(int(begun.lengths.max(initial=0))):
    inside = begun.unfinished & (t < begun.lengths)
    matched[inside] = table[matched[inside], begun.tokens[..., t][inside]]
  return dataclasses.replace(begun, matched=matched)


def check_json(examples: Sequence[Example], setting: str, why: str) -> None:
  """Refuses examples that could not be written as JSON.

  Args:
    examples: some of the data.
    setting: that asks for it, which could be 0 instead.
    why: what for.
  """
  for example in examples:
    if not _is_json(example.meta):
      raise DataError(
        f"{setting}: {why}, and the meta {example.meta!r:.80} of {example.question!r:.40} is not "
        f"JSON; make it of dicts with text as keys, lists, text and numbers, or use {setting}=0"
      )


def _is_json(value: object) -> bool:
  """Returns whether a value is the same after it was written as JSON and read again."""
  if isinstance(value, dict):
    return all(isinstance(name, str) and _is_json(entry) for name, entry in value.items())
  if isinstance(value, list):
    return all(map(_is_json, value))
  return value is None or isinstance(value, str | int | float)


def to_json(groups: Groups) -> Json:
  """Returns the groups as JSON, without the places after the longest completion."""
  longest = int(groups.episodes.lengths.max(initial=0))
  fields: Json = {}
  for name, value in vars(groups.episodes).items():
    if name == "prompts":
      fields[name] = [_packed(value.tokens), _packed(value.lengths)]
    elif name == "examples":
      fields[name] = [None if example is None else list(example) for example in value]
    elif isinstance(value, dict):
      fields[name] = [[*place, item] for place, item in value.items()]
    else:
      fields[name] = _packed(value[..., :longest] if value.ndim == 3 else value)
  return {
    "length": groups.episodes.tokens.shape[2],
    "draws": groups.draws.tolist(),
    "born": groups.born.tolist(),
    "episodes": fields,
  }


def from_json(saved: Json) -> Groups:
  """Returns the groups that `to_json` wrote."""
  fields: Json = {}
  for name, value in saved["episodes"].items():
    if name == "prompts":
      fields[name] = Prompts(*map(_unpacked, value))
    elif name == "examples":
      fields[name] = [None if example is None else Example(*example) for example in value]
    elif isinstance(value, list):
      fields[name] = {(p, g): item for p, g, item in value}
    else:
      array = _unpacked(value)
      missing = saved["length"] - array.shape[-1] if array.ndim == 3 else 0
      fields[name] = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])
  draws, born = (np.asarray(saved[name], np.int32) for name in ("draws", "born"))
  return Groups(Episodes(**fields), draws, born)


def _packed(array: np.ndarray) -> Json:
  data = zlib.compress(np.ascontiguousarray(array).tobytes(), 1)
  return {
    "dtype": array.dtype.name,
    "shape": list(array.shape),
    "data": base64.b64encode(data).decode("ascii"),
  }


def _unpacked(saved: Json) -> np.ndarray:
  data = zlib.decompress(base64.b64decode(saved["data"]))
  return np.frombuffer(data, saved["dtype"]).reshape(saved["shape"]).copy()
