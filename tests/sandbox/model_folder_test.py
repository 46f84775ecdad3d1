"""Files of a folder that may come from anybody; tests/models/hf/hostile_folders_test.py has more."""

import json
import os
import pathlib
import re

import pytest

from grpo_jax.config.kinds import Whole
from grpo_jax.errors import DataError
from grpo_jax.sandbox import model_folder

WHERE = "init_from=x"


def read(folder: pathlib.Path, text: str):
  (folder / "a.json").write_text(text)
  return model_folder.read_json(WHERE, folder, "a.json")


def test_an_object_is_read_and_a_missing_file_is_none(tmp_path):
  assert read(tmp_path, '{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
  assert model_folder.read_json(WHERE, tmp_path, "b.json") is None


@pytest.mark.parametrize(
  ("text", "said"),
  [
    ("[1]", "it holds [1] and no object"),
    ('{"a": 1, "a": 2}', "the key 'a' is there twice"),
    ('{"a": NaN}', "NaN is no number of JSON"),
    ('{"a": 1e999}', "is too large for a number"),
    ('{"a": ' + "9" * 101 + "}", "a number of 101 digits"),
    ('{"a": ' * 41 + "1" + "}" * 41, "nested deeper than 40 levels"),
    ('{"a": ' * 100_000, "nested deeper than 40 levels"),
    ('{"a": "\\ud800"}', "surrogates not allowed"),
    ("{", "Expecting property name"),
  ],
)
def test_what_is_no_plain_json(text, said, tmp_path):
  with pytest.raises(DataError, match=f"^{WHERE}: a.json is not JSON .*{re.escape(said)}"):
    read(tmp_path, text)


def test_a_large_file_is_not_read(tmp_path):
  (tmp_path / "a.json").write_text("{}  ")
  with pytest.raises(DataError, match="a.json has 4 bytes; at most 3 would work"):
    model_folder.read_json(WHERE, tmp_path, "a.json", most=3)


def test_links_stay_in_the_folder_or_in_the_cache_of_their_model(tmp_path):
  outside, folder = tmp_path / "outside", tmp_path / "folder"
  cache = tmp_path / "models--a"
  revision = cache / "snapshots" / "1"
  for place in (outside, folder, cache / "blobs", revision):
    place.mkdir(parents=True)
  (outside / "a.json").write_text("{}")
  (cache / "blobs" / "b").write_text("{}")
  os.symlink(cache / "blobs" / "b", revision / "a.json")
  assert model_folder.read_json(WHERE, revision, "a.json") == {}
  for place in (folder, revision):
    os.symlink(outside / "a.json", place / "b.json")
    with pytest.raises(DataError, match="b.json is a link that leads out of the folder"):
      model_folder.find(WHERE, place, "b.json")


def test_values_fit_the_table_or_are_null():
  table = {"size": Whole(1, 8), "names": model_folder.list_of(model_folder.TEXT, 2, 1)}
  model_folder.check(WHERE, "a.json", {"size": 8, "names": ["a"], "more": {}}, table)
  model_folder.check(WHERE, "a.json", {"size": None}, table)
  for values in ({"size": 9}, {"names": []}, {"names": ["a"] * 3}, {"names": ["a", 1]}):
    with pytest.raises(DataError, match="^init_from=x: a.json has inner.* would work$"):
      model_folder.check(WHERE, "a.json", values, table, "inner.")


def test_values_are_shown_in_one_short_line():
  assert model_folder.shown("a\nb") == "'a\\nb'" and len(model_folder.shown("a" * 1000)) == 80
  nested = json.loads("[" * 50 + "]" * 50)
  assert model_folder.depth(nested) == 50 and model_folder.shown(nested) == "a deeply nested value"
  assert model_folder.first_line(ValueError("a\x1b[1m\nb")) == "a\ufffd[1m"
