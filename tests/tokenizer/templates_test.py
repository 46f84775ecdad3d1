"""Chat templates, rendered in this process; chat_test.py renders them as a run does."""

import pytest

from grpo_jax.tokenizer import templates

MESSAGES = [{"role": "user", "content": "Hi <b>"}]


def render(template: str, **values) -> dict:
  return templates.answer(templates.compile_or_error(template), {"messages": MESSAGES, **values})


@pytest.mark.parametrize(
  ("template", "text"),
  [
    ("{% for m in messages %}\n<{{ m.role }}>{{ m.content }}\n{% endfor %}", "<user>Hi <b>\n"),
    ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hi <b>"),
    ("{% for i in range(3) %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}", "0"),
    ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi <b>"}]'),
    ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
  ],
)
def test_what_transformers_offers(template, text):
  assert render(template) == {"text": text}


@pytest.mark.parametrize(
  ("template", "said"),
  [
    ("{% if %}", "xpected"),
    ("{{ raise_exception('no system') }}", "no system"),
    ("{{ messages.append(1) }}", "is unsafe"),
    ("{{ ''.__class__.__mro__ }}", "is unsafe"),
    ("{{ 'a' * 200000 }}", "makes 200000 characters of a conversation, at most 100006 would work"),
  ],
)
def test_what_is_refused(template, said):
  assert said in render(template)["error"]


def test_a_request_without_a_template_uses_the_last_one():
  renderer = templates.Renderer()
  values = {"messages": MESSAGES}
  assert "no template" in renderer({"values": values})["error"]
  first = renderer({"template": "{{ messages[0].role }}", "values": values})
  assert first == renderer({"values": values}) == {"text": "user"}
