"""Keeps compiled programs in a folder, so that a run that is resumed compiles little or nothing.

JAX writes a program that took at least LEAST_SECONDS to compile on process 0, and every process
reads it. The name of an entry is a hash of the program, its options, the versions and the devices,
so an entry never stands for another program; on a CPU the hash includes the process, so that of
several processes only the first finds its own.

JAX writes an entry in place and never replaces one: an entry that a kill cut short would cause a
warning and a compilation at each start. So damaged entries are removed at the start (`_mend`), and
the checksums of the others are kept in SUMS. In a bucket an object appears whole or not at all, and
nothing is checked.
"""

import contextlib
import json
import os
import time
import zlib
from collections.abc import Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache

from grpo_jax.errors import GrpoError, SettingError
from grpo_jax.io import storage
from grpo_jax.sandbox import deadline, model_folder

IN_WORKDIR = "workdir"  # value of the setting: a folder in the run's own folder
FOLDER = "compiled"  # the name of that folder
SUMS = "checksums.json"  # in the folder of programs: name of an entry -> its CRC-32
ENTRY = "*-cache"
ZLIB, ZSTD = b"\x78", b"\x28\xb5\x2f\xfd"  # first bytes of compressed entries
WRITING_SECONDS = 60.0  # another process may be writing a younger entry of a shared folder
LEAST_SECONDS = 0.5  # programs that compile faster are not kept
# events that JAX reports
READ, COMPILED = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"
SETTINGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


class Programs:
  """Counts the programs that were read from a folder and added to it.

  `folder` is as it was given; "": none.
  """

  def __init__(self, folder: str):
    self.folder, self.read, self.added = folder, 0, 0

  def __call__(self, event: str, **_: object) -> None:
    """Counts an event; JAX calls it with every one that it reports."""
    self.read += event == READ
    self.added += event == COMPILED

  def __str__(self) -> str:
    """Returns the counts in words, to end a sentence with."""
    if not self.folder:
      return ""
    return f"; programs: {self.added} compiled for {self.folder}, {self.read} read from it"


@contextlib.contextmanager
def kept(setting: str, workdir: str) -> Iterator[Programs]:
  """Keeps compiled programs while the block runs.

  Args:
    setting: `compilation_cache`: IN_WORKDIR, a folder on a disk or in a bucket, or "" for none.
    workdir: of the run.
  """
  folder = f"{workdir.rstrip('/')}/{FOLDER}" if setting == IN_WORKDIR else setting
  if not folder:
    yield Programs("")
    return
  storage.check("compilation_cache", folder)
  storage.check_reached("compilation_cache", folder)
  shown, folder = folder, os.path.expanduser(folder)
  try:
    storage.absolute(folder).mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise SettingError(
      f"compilation_cache={setting!r}: {folder} cannot be written ({error.strerror}); use another "
      "folder, or '' for none"
    ) from error
  folder = os.fspath(storage.absolute(folder))
  _mend(folder, setting != IN_WORKDIR)
  before = {name: getattr(jax.config, name) for name in SETTINGS}
  least = min(LEAST_SECONDS, before[SETTINGS[1]])
  programs = Programs(shown)
  jax.monitoring.register_event_listener(programs)
  try:
    _set(dict(zip(SETTINGS, (folder, least))))
    yield programs
  finally:
    jax.monitoring.unregister_event_listener(programs)
    _set(before)
    _mend(folder, setting != IN_WORKDIR)


def _mend(folder: str, shared: bool) -> None:
  """Removes damaged entries and keeps the checksums of the others, on process 0 and on a disk.

  Args:
    folder: of programs.
    shared: whether other runs may be writing to it.
  """
  if jax.process_index() or storage.in_bucket(folder):
    return
  place = storage.place(folder)
  # others may clean the folder up, or the disk be full: programs are then compiled again
  with contextlib.suppress(OSError):
    before, states, sums = _read_sums(place), examine(folder), {}
    for name, (is_whole, crc) in states.items():
      if is_whole:
        sums[name] = crc
      elif not (shared and time.time() - os.stat(place / name).st_mtime < WRITING_SECONDS):
        (place / name).unlink()
    if sums != before:
      storage.write(place / SUMS, (json.dumps(sums, indent=2) + "\n").encode())


def examine(folder: str) -> dict[str, tuple[bool, str]]:
  """Returns for each entry of a folder on a disk whether it is whole, and its CRC-32.

  Its checksum decides, if that is kept, or else whether it can be unpacked.
  """
  place, states = storage.place(folder), {}
  sums = _read_sums(place)
  for path in sorted(path for path in place.glob(ENTRY) if storage.is_plain(path)):
    content = path.read_bytes()
    crc = f"{zlib.crc32(content):08x}"
    states[path.name] = (sums[path.name] == crc if path.name in sums else _unpacks(content), crc)
  return states


def _read_sums(folder: storage.Path) -> dict[str, str]:
  """Returns the checksums that a folder keeps; {} if they cannot be read."""
  try:
    return model_folder.read_json("compilation_cache", folder, SUMS, model_folder.INDEX_BYTES) or {}
  except GrpoError:
    return {}


def _unpacks(entry: bytes) -> bool:
  """Returns whether an entry can be unpacked; assumes it for formats that jax does not use."""
  try:
    if entry[:1] == ZLIB:
      zlib.decompress(entry)
    elif entry[:4] == ZSTD:
      import zstandard

      zstandard.ZstdDecompressor().decompress(entry)
    return len(entry) > len(ZSTD)
  except ImportError:
    return True
  except Exception:  # zstandard and zlib have their own
    return False


@contextlib.contextmanager
def same_settings(title: str) -> Iterator[None]:
  """Restores jax's settings after the block, with a warning: they would change programs.

  Args:
    title: names the code that the block calls, for the warning.
  """
  before = dict(jax.config.values)
  try:
    yield
  finally:
    now = jax.config.values
    for name in (name for name, value in before.items() if now.get(name) != value):
      deadline.warn(
        f"{title} changed jax's setting {name} to {now.get(name)!r}, which was changed back"
      )
      jax.config.update(name, before[name])


def _set(values: dict[str, object]) -> None:
  """Changes settings of jax and makes it forget the folder that it used first."""
  for name, value in values.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()
