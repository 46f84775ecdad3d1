"""Model folders that must be refused, as data: an edit of a folder that works, and a piece of what
is then said.

`CASES` are refused; `ACCEPTED` are strange and work, each with the reason.
"""

import json
import pickle
from collections.abc import Callable, Iterator

import hostile_edits as e
import hostile_files
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

# -- what can be wrong with the value of a key

SIZE = {
  "zero": 0,
  "negative": -1,
  "fraction": 1.5,
  "true": True,
  "text": "64",
  "list": [64],
  "object": {"a": 1},
}
SIZE |= {"10^9": 10**9, "10^30": 10**30}
NUMBER = {
  "zero": 0,
  "negative": -1.0,
  "true": True,
  "text": "1e4",
  "list": [1.0],
  "object": {},
  "1e300": 1e300,
}
STRING = {"number": 5, "list": ["silu"], "object": {"a": "silu"}, "true": True}
FLAG = {"one": 1, "text": "true", "list": [], "object": {}}
OBJECT = {"text": "yarn", "list": [1], "number": 7, "true": True}
IDS = {
  "negative": -1,
  "fraction": 1.5,
  "text": "<s>",
  "nested": [[1]],
  "true": True,
  "2^40": 2**40,
  "texts": ["a"],
}
IDS |= {"many": list(range(101)), "object": {"id": 1}}

KEYS = {
  CONFIG: {
    **dict.fromkeys(
      (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
      ),
      SIZE,
    ),
    **dict.fromkeys(("intermediate_size", "head_dim"), SIZE),
    **dict.fromkeys(("rope_theta", "rms_norm_eps", "rope_parameters__rope_theta"), NUMBER),
    **dict.fromkeys(
      ("model_type", "hidden_act", "hidden_activation", "rope_parameters__rope_type"), STRING
    ),
    **dict.fromkeys(("tie_word_embeddings", "use_sliding_window"), FLAG),
    **dict.fromkeys(("rope_parameters", "rope_parameters__full_attention"), OBJECT),
    "eos_token_id": IDS,
    "layer_types": {
      "text": "full_attention",
      "numbers": [1],
      "object": {},
      "nested": [["full_attention"]],
    },
  },
  GENERATION: {"eos_token_id": IDS, "pad_token_id": {**IDS, "list": [1]}},
  TOKENIZER_CONFIG: {
    **dict.fromkeys(
      ("eos_token", "pad_token", "bos_token"),
      {**STRING, "content": {"content": 5}, "unnamed": {"text": "a"}},
    ),
    "chat_template": {
      **STRING,
      "bare": [{"name": "default"}],
      "numbers": [{"name": 1, "template": 2}],
    },
  },
  DECODER: {
    **dict.fromkeys(("vocab", "width", "layers", "heads", "kv_heads", "head_dim", "mlp"), SIZE),
    **dict.fromkeys(("rope_theta", "norm_eps"), NUMBER),
    **dict.fromkeys(("qk_norm", "tied"), FLAG),
    "attention": {"text": "full", "numbers": [1], "object": {}},
    "activation": {"number": 5, "text": "relu", "list": ["silu"]},
    "rope_scaling": {"text": "llama3", "texts": ["8", "1", "4", "64"], "object": {}},
  },
}

# What can be wrong with any JSON file: how, and what is said.
DAMAGE: dict[str, tuple[Callable[[str], e.Edit], str]] = {
  "empty": (lambda f: e.write(f, b""), "is not JSON"),
  "cut": (lambda f: e.change(f, lambda b: b[: len(b) // 2]), "is not JSON"),
  "latin-1": (lambda f: e.write(f, b'{"a": "\xe9"}'), "cannot be read"),
  "utf-16": (lambda f: e.change(f, lambda b: b.decode().encode("utf-16")), "cannot be read"),
  "zeros": (lambda f: e.write(f, bytes(99)), "is not JSON"),
  "a list": (lambda f: e.write(f, "[1, 2]"), "no object"),
  "a text": (lambda f: e.write(f, '"config"'), "no object"),
  "null": (lambda f: e.write(f, "null"), "no object"),
  "deep lists": (
    lambda f: e.write(f, '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "nested deeper",
  ),
  "deep objects": (lambda f: e.write(f, '{"a":' * 100_000 + "1" + "}" * 100_000), "nested deeper"),
  "50 levels": (lambda f: e.insert(f, '"a": ' + "[" * 50 + "]" * 50), "nested deeper"),
  "NaN": (lambda f: e.insert(f, '"a": NaN'), "NaN is no number"),
  "-Infinity": (lambda f: e.insert(f, '"a": -Infinity'), "-Infinity is no number"),
  "1e400": (lambda f: e.insert(f, '"a": 1e400'), "too large for a number"),
  "many digits": (lambda f: e.insert(f, '"a": ' + "9" * 100_000), "a number of 100000 digits"),
  "twice": (lambda f: e.insert(f, '"a": 1, "a": 2'), "is there twice"),
  "half a pair": (lambda f: e.insert(f, '"a": "\\ud800"'), "surrogates not allowed"),
  "large": (lambda f: e.grow(f, 2 * 1000**3), "at most"),
  "a link out": (lambda f: e.link(f, "../outside"), "leads out of the folder"),
  "a link to /dev/zero": (lambda f: e.link(f, "/dev/zero"), "leads out of the folder"),
}


# Each of these makes a conversation impossible; the time and the memory of it are limited.
TEMPLATES = {
  "loops": (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "more than 2 seconds",
  ),
  "calls that double": (
    "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "more than 2 seconds",
  ),
  "nested lists": (
    "{% set n=namespace(a=1) %}{% for i in range(60) %}{% set n.a=[n.a,n.a] %}{% endfor %}{{ "
    "n.a|tojson }}",
    "more than 2 seconds",
  ),
  "a range": ("{% for a in range(10**9) %}{% endfor %}", "Range too big"),
  "a text times": ("{{ 'x' * 5000000000 }}", "MB of memory"),
  "700 MB": ("{{ ('x' * 700000000)|length }}", "MB of memory"),
  "a list times": ("{{ [0] * 5000000000 }}", "MB of memory"),
  "centred": ("{{ 'x'|center(10**10) }}", "MB of memory"),
  "the method center": ("{{ 'x'.center(10**10) }}", "MB of memory"),
  "percent": ("{{ '%10000000000d' % 1 }}", "MB of memory"),
  "format": ("{{ '{:10000000000d}'.format(1) }}", "MB of memory"),
  "indent": ("{{ ('x\n'*1000)|indent(10**8) }}", "more than "),
  "replace": ("{{ ('x'*100000)|replace('x','x'*100000) }}", "more than "),
  "text that doubles": (
    "{% set n=namespace(a='x') %}{% for i in range(60) %}{% set n.a=n.a~n.a %}{% endfor %}",
    "more than ",
  ),
  "list that doubles": (
    "{% set n=namespace(a=[1]) %}{% for i in range(60) %}{% set n.a=n.a+n.a %}{% endfor %}",
    "more than ",
  ),
  "recursion": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
  "deep brackets": ("{{ " + "(" * 40_000 + "1" + ")" * 40_000 + " }}", "recursion"),
  "deep blocks": ("{% if 1 %}" * 2000 + "{% endif %}" * 2000, "recursion"),
  "long output": ("{{ 'x' * 2000000 }}", "characters of a conversation, at most 1000"),
  "a class": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "is unsafe"),
  "globals": ("{{ cycler.__init__.__globals__.os.system('touch /tmp/x') }}", "is unsafe"),
  "a file": ("{% include '/etc/passwd' %}", "no loader"),
  "parents": ("{% extends '/etc/passwd' %}", "no loader"),
  "syntax": ("{% if %}", "xpected"),
  "a refusal of two lines": ("{{ raise_exception('no\\nno\x1b[2J') }}", "chat_template: no;"),
  "a refusal that empties the screen": (
    "{{ raise_exception('n\x1b[2Jo') }}",
    "chat_template: n\ufffd[2Jo;",
  ),
  "a pair's half": ("{{ '\\ud800' }}", "cannot be encoded"),
  "too long a program": ("x" * 100_001, "at most 100000 characters"),
}


def all_cases() -> Iterator[tuple[str, Case]]:
  """Yields each key with each wrong value, each JSON file with each damage, each template, and what
  is left.
  """
  for file, keys in KEYS.items():
    for key, values in keys.items():
      for name, value in values.items():
        edit = e.set_keys(file, **{key: value})
        yield f"{file} {key} {name}", Case(edit, f"{key.replace('__', '.')}=")
  for file in (CONFIG, TOKENIZER, TOKENIZER_CONFIG, GENERATION, INDEX, DECODER):
    for name, (make, says) in DAMAGE.items():
      yield f"{file} {name}", Case(make(file), says)
  for name, (template, says) in TEMPLATES.items():
    text = "{{ messages[-1].content }}" + template
    yield f"template: {name}", Case(e.set_keys(TOKENIZER_CONFIG, chat_template=text), says)
  yield from hostile_files.CASES.items()


CASES = dict(all_cases())

TIED = e.several(e.remove(DECODER), e.set_keys(CONFIG, tie_word_embeddings=True))
CASES |= {"weights: a tied head of its own": Case(TIED, "lm_head.weight is another matrix")}
ACCEPTED = {
  "nothing is wrong": (lambda folder: None, "it is the folder that the others are made of"),
  "a snapshot of the hub's cache": (e.snapshot, "its links lead to the blobs of the same model"),
  "a link inside": (
    e.link(WEIGHTS, "real.safetensors"),
    "a folder may be arranged with links of its own",
  ),
  "strangers": (
    e.several(
      e.write("modeling_evil.py", "raise SystemExit"),
      e.write("pytorch_model.bin", pickle.dumps([1])),
    ),
    "neither is opened",
  ),
  "unknown keys": (
    e.set_keys(
      CONFIG,
      use_cache="maybe",
      torch_dtype=7,
      initializer_range=-1,
      auto_map={"AutoModel": "evil.M"},
    ),
    "nothing of these is read",
  ),
  "too few layer_types": (
    e.set_keys(CONFIG, layer_types=["full_attention"]),
    "all layers are of that type anyway",
  ),
  "an optional file is a folder": (e.make_folder(GENERATION), "it counts as not there"),
  "an index that lies": (
    e.write(INDEX, json.dumps({"metadata": [], "weight_map": {"nowhere": WEIGHTS}})),
    "it says which files there are; what they hold, their headers say",
  ),
  "a pad token of no vocabulary": (
    e.set_keys(TOKENIZER_CONFIG, pad_token="[PAD]"),
    "padding is masked everywhere, another token serves as well",
  ),
  "spare embeddings": (
    e.set_keys(TOKENIZER, model__vocab__q=127),
    "a model may have more embeddings than tokens",
  ),
  "a tied model's copy": (
    e.several(TIED, e.copy_tensor("model.embed_tokens.weight", "lm_head.weight")),
    "many programs store the copy; it is compared, and not used",
  ),
  "byte order of keys": (
    e.in_header(lambda h: h.update(__metadata__={"format": "evil"})),
    "the format is not asked",
  ),
}
