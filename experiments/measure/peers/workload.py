"""Parses the command line of a peer: the sizes of the workload. It needs nothing but Python."""

import argparse

SIZES = {
  "layers": 8,
  "width": 512,
  "mlp": 1536,
  "vocab": 8192,
  "prompts": 4,
  "group": 8,
  "prompt_len": 128,
  "completion": 128,
  "steps": 4,
  "mu": 1,
}


def parse(doc: str | None, tail: bool = False) -> argparse.Namespace:
  """Returns the sizes that the flags give; `tail`: the peer can force long-tailed lengths."""
  parser = argparse.ArgumentParser(
    description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  for name, default in SIZES.items():
    parser.add_argument(f"--{name}", type=size, default=default)
  if tail:
    parser.add_argument(
      "--tail",
      action="store_true",
      help="long-tailed lengths with a mean of a quarter of --completion, by lengths()",
    )
  return parser.parse_args()


def size(text: str) -> int:
  """Returns a size that was given as text."""
  if not text.isascii() or not text.isdigit() or not 0 < int(text[:10]) < 2**31:
    raise argparse.ArgumentTypeError(f"{text}: use a whole number of at least 1")
  return int(text)
