"""Chat templates in the style of each family's own, with tokenizers of its kind: what a template
may use, one has.

Three kinds of tokenizers: bytes (Qwen, Llama 3, SmolLM3, OLMo 2), sentencepiece with a space before
the very first word (Mistral), before each text between special tokens (Phi-3), or nowhere (Gemma).
"""

import json
import pathlib
from typing import Any, NamedTuple

import tokenizers
from tokenizers import (
  AddedToken,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
  trainers,
)

TEXTS = (
  "Tom has 12 apples and buys 3 more.\nHow many apples does Tom have? Let us think: 12 + 3 = 15. "
  "#### 15",
  "Ann's box costs $1,204.50; she has 7 - is that enough? Be brief. system user assistant",
)

QWEN2 = """{% for message in messages %}
{%- if loop.first and message['role'] != 'system' %}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

QWEN3 = """{%- if tools %}
{{- '<|im_start|>system\\n# Tools\\n' }}
{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.multi_step_tool and message.role == 'user' and message.content is string and not
  (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
{%- set ns.multi_step_tool = false %}
{%- set ns.last_query_index = index %}
{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
{%- if loop.index0 > ns.last_query_index and loop.last %}
{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' + content + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}
{%- endif %}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}"""

LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
{%- if strftime_now is defined %}{%- set date_string = strftime_now('%d %b %Y') %}
{%- else %}{%- set date_string = '26 Jul 2024' %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
{%- set system_message = messages[0]['content']|trim %}
{%- set messages = messages[1:] %}
{%- else %}
{%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools is not none %}{{- 'Environment: ipython\\n' }}{%- endif %}
{{- 'Cutting Knowledge Date: December 2023\\nToday Date: ' + date_string + '\\n\\n' + system_message + '<|eot_id|>' }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

_GEMMA_TURNS = """{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\\n' + (first if loop.first else '') + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""

GEMMA = (
  """{{ bos_token }}{% set first = '' %}{% if messages[0]['role'] == 'system' %}
{{- raise_exception('System role not supported') }}
{%- endif %}"""
  + _GEMMA_TURNS
)

GEMMA3 = (
  """{{ bos_token }}{%- set first = '' %}
{%- if messages[0]['role'] == 'system' %}
{%- set first = messages[0]['content'] + '\\n\\n' %}{%- set messages = messages[1:] %}
{%- endif %}"""
  + _GEMMA_TURNS
)

MISTRAL = """{%- if messages[0]['role'] == 'system' %}
{%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
{%- if message['role'] == 'user' %}
{%- if tools is not none and loop.last %}{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- if loop.last and system_message is defined %}
{{- '[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}
{%- else %}
{{- '[INST] ' + message['content'] + '[/INST]' }}
{%- endif %}
{%- else %}
{{- ' ' + message['content'] | trim + eos_token }}
{%- endif %}
{%- endfor %}"""

OLMO2 = """{{ bos_token }}{% for message in messages %}
{%- if message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + '\\n' }}
{%- elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '\\n' }}
{%- else %}{{ '<|assistant|>\\n' + message['content'] + eos_token + ('' if loop.last else '\\n') }}
{%- endif %}
{%- if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}"""

SMOLLM3 = """{%- if enable_thinking is not defined %}{%- set enable_thinking = true %}{%- endif %}
{%- set mode = '/think' if enable_thinking else '/no_think' %}
{%- set said = '' %}
{%- if messages[0].role == 'system' %}
{%- set said = messages[0].content %}
{%- if '/no_think' in said %}{%- set mode = '/no_think' %}
{%- elif '/think' in said %}{%- set mode = '/think' %}{%- endif %}
{%- set said = said.replace('/no_think', '').replace('/think', '').rstrip() %}
{%- endif %}
{{- '<|im_start|>system\\n## Metadata\\n\\nToday Date: ' + (date or strftime_now('%d %B %Y')) + '\\n' }}
{{- 'Reasoning Mode: ' + mode + '\\n\\n## Custom Instructions\\n\\n' }}
{{- (said or 'You are a helpful assistant.') + '\\n\\n' }}
{%- if xml_tools or python_tools %}{{- '### Tools\\n\\n' }}{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
{%- set content = message.content if message.content is string else '' %}
{%- if message.role == 'user' %}
{{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{% generation %}{{- '<|im_start|>assistant\\n' + content.lstrip('\\n') + '<|im_end|>\\n' }}{% endgeneration %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{%- if mode == '/think' %}{{- '<|im_start|>assistant\\n' }}
{%- else %}{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n' }}{%- endif %}
{%- endif %}"""

PHI3 = """{% for message in messages %}
{%- if message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + '<|end|>\\n' }}
{%- elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '<|end|>\\n' }}
{%- else %}{{ '<|assistant|>\\n' + message['content'] + '<|end|>\\n' }}
{%- endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""


class Chat(NamedTuple):
  """How one family chats."""

  template: str
  kind: str  # of its tokenizer: bytes, first, each or nowhere, as the first lines of this file say
  specials: tuple[str, ...]
  stops: tuple[str, ...]  # of generation_config.json
  eos: str
  bos: str = ""
  begins: bool = False  # whether the tokenizer itself puts `bos` before a text
  texts: tuple[str, ...] = ()  # added tokens that are not special
  strips: bool = False  # whether special tokens swallow the white space behind them
  asks: tuple[dict[str, Any], ...] = ({},)  # what the template knows beside the messages
  system: bool = True  # whether it takes a system message
  tool: bool = False  # whether it shows a tool's message as one


_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_THINK = ({}, {"enable_thinking": False}, {"enable_thinking": True})
_TURNS = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
_HEADERS = (
  "<|begin_of_text|>",
  "<|end_of_text|>",
  "<|start_header_id|>",
  "<|end_header_id|>",
  "<|eot_id|>",
  "<|eom_id|>",
)
_PHI = (
  "<unk>",
  "<s>",
  "</s>",
  "<|endoftext|>",
  "<|assistant|>",
  "<|end|>",
  "<|system|>",
  "<|user|>",
)
_INST = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
_DATE = {"date_string": "26 Jul 2024"}  # ours; transformers' is today

CHATS = {
  "qwen2": Chat(QWEN2, "bytes", _CHATML, ("<|im_end|>", "<|endoftext|>"), "<|im_end|>", tool=True),
  "qwen3": Chat(
    *(QWEN3, "bytes", _CHATML, ("<|im_end|>", "<|endoftext|>"), "<|im_end|>"),
    texts=("<think>", "</think>"),
    asks=_THINK,
    tool=True,
  ),
  "llama": Chat(
    *(
      LLAMA3,
      "bytes",
      _HEADERS,
      ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
      "<|eot_id|>",
      "<|begin_of_text|>",
    ),
    begins=True,
    asks=(_DATE, {"date_string": "1 May 2025"}),
    tool=True,
  ),
  "gemma": Chat(
    GEMMA,
    "nowhere",
    _TURNS,
    ("<eos>", "<end_of_turn>"),
    "<eos>",
    "<bos>",
    begins=True,
    system=False,
  ),
  "gemma2": Chat(
    GEMMA,
    "nowhere",
    _TURNS,
    ("<eos>", "<end_of_turn>"),
    "<eos>",
    "<bos>",
    begins=True,
    system=False,
  ),
  "gemma3_text": Chat(
    GEMMA3, "nowhere", _TURNS, ("<eos>", "<end_of_turn>"), "<eos>", "<bos>", begins=True
  ),
  "mistral": Chat(MISTRAL, "first", _INST, ("</s>",), "</s>", "<s>", begins=True),
  "olmo2": Chat(
    OLMO2,
    "bytes",
    ("<|endoftext|>", "<|pad|>"),
    ("<|endoftext|>",),
    "<|endoftext|>",
    "<|endoftext|>",
  ),
  "smollm3": Chat(
    *(SMOLLM3, "bytes", _CHATML, ("<|im_end|>",), "<|im_end|>"),
    texts=("<think>", "</think>"),
    asks=tuple({"date": "26 July 2024", **ask} for ask in _THINK),
  ),
  "phi3": Chat(
    PHI3,
    "each",
    _PHI,
    ("<|endoftext|>", "<|end|>", "<|user|>"),
    "<|endoftext|>",
    "<s>",
    strips=True,
  ),
}


def backend(chat: Chat) -> tokenizers.Tokenizer:
  """A small tokenizer of a family's kind."""
  in_bytes = chat.kind == "bytes"
  model = models.BPE() if in_bytes else models.BPE(byte_fallback=True, unk_token="<unk>")
  made = tokenizers.Tokenizer(model)
  if in_bytes:
    made.pre_tokenizer, made.decoder = (
      pre_tokenizers.ByteLevel(add_prefix_space=False),
      decoders.ByteLevel(),
    )
    letters = pre_tokenizers.ByteLevel.alphabet()
  else:
    replace, letters = normalizers.Replace(" ", "▁"), [f"<0x{i:02X}>" for i in range(256)]
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if chat.kind == "first":
      made.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", False)
    else:
      made.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), replace])
        if chat.kind == "each"
        else replace
      )
    made.decoder = decoders.Sequence(
      back if chat.kind == "nowhere" else [*back, decoders.Strip(" ", 1, 0)]
    )
  bytes_of = [] if in_bytes else [AddedToken(letter, special=True) for letter in letters]
  trainer = trainers.BpeTrainer(
    vocab_size=600,
    show_progress=False,
    initial_alphabet=letters if in_bytes else [],
    special_tokens=[*chat.specials, *bytes_of],
  )
  trainee = tokenizers.Tokenizer.from_str(made.to_str())
  trainee.train_from_iterator(TEXTS, trainer)
  raw, trained = json.loads(made.to_str()), json.loads(trainee.to_str())
  made = tokenizers.Tokenizer.from_str(json.dumps(raw | {"model": trained["model"]}))
  made.add_special_tokens(
    [AddedToken(each, special=True, rstrip=chat.strips, normalized=False) for each in chat.specials]
  )
  made.add_tokens([AddedToken(each, special=False, normalized=False) for each in chat.texts])
  if chat.begins:
    bos = (chat.bos, made.token_to_id(chat.bos))
    made.post_processor = processors.TemplateProcessing(f"{chat.bos} $A", None, [bos])
  return made


def save(family: str, folder: pathlib.Path) -> int:
  """Writes the tokenizer of a family into a folder; returns how many tokens it has."""
  chat, made = CHATS[family], backend(CHATS[family])
  made.save(str(folder / "tokenizer.json"))
  config = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "chat_template": chat.template,
    "eos_token": chat.eos,
  }
  config |= {"bos_token": chat.bos} if chat.bos else {}
  (folder / "tokenizer_config.json").write_text(json.dumps(config))
  stops = [made.token_to_id(each) for each in chat.stops]
  (folder / "generation_config.json").write_text(
    json.dumps({"eos_token_id": stops if len(stops) > 1 else stops[0]})
  )
  return made.get_vocab_size()
