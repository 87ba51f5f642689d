"""Templates that read content as parts are given parts; a text that a template would leave out is refused, never lost."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from paceline_runtime.text.chat_template import ChatTemplate, ChatTemplateError

TURNS = [("system", "Be brief."), ("user", "Hi there"), ("assistant", "Hello!"), ("user", "A\nb  ")]
OF_PARTS = {
    "a loop": "{% for m in messages %}<{{ m['role'] }}>{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}"
    "{% endif %}{% endfor %}{% endfor %}",
    "the first": "{% for m in messages %}<{{ m.role }}>{{ m.content[0]['text'] }}{% endfor %}",
    "a filter (LLaVA)": "{% for m in messages %}{{ m.role | upper }}: {% for c in m['content'] | selectattr('type', 'equalto', "
    "'text') %}{{ c['text'] + ' ' }}{% endfor %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}",
    "mapped": "{% for m in messages %}<{{ m.role }}>{{ m.content | map(attribute='text') | join('') }}{% endfor %}",
    "Idefics 3": "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if "
    "message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}{% for line in message['content'] %}"
    "{% if line['type'] == 'text' %}"
    "{{line['text']}}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
    "in a macro": "{% macro show(parts) %}{% for c in parts %}{% if c is mapping and 'text' in c %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endmacro %}{% for m in messages %}[{{ m.role }}]{{ show(m.content) }}{% endfor %}",
    "and refuses texts": "{% for m in messages %}{% if m.content is string %}{{ raise_exception('parts!') }}{% endif %}"
    "<{{ m.role }}>{{ m.content[0].text }}{% endfor %}",
    "collected": "{% for m in messages %}{% set ns = namespace(t='') %}{% for c in m.content %}{% if c.type == 'text' %}"
    "{% set ns.t = ns.t ~ c.text %}{% endif %}{% endfor %}<{{ m.role }}>{{ ns.t }}{% endfor %}",
}
OF_TEXTS = {
    "as it stands": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "trimmed": "{% for m in messages %}<{{ m.role }}>{{ m['content'] | trim }}{% endfor %}",
    "in capitals": "{% for m in messages %}<{{ m.role }}>{{ m['content'] | upper }}{% endfor %}",
    "both (Qwen2-VL)": "{% for m in messages %}<{{ m.role }}>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}",
    "as JSON": "{{ messages | tojson }}",
}
MIXED = (
    "{% for m in messages %}{% if m.role == 'user' %}<user>{{ m.content[0]['text'] }}{% else %}<{{ m.role }}>"
    "{{ m.content + '.' }}{% endif %}{% endfor %}"
)


def _messages(form):
    """`form` of each role."""
    parts = {"parts": lambda text: [{"type": "text", "text": text}], "text": str}
    return [{"role": role, "content": parts[form if isinstance(form, str) else form[role]](text)} for role, text in TURNS]


def _ours(source, messages, **options):
    return ChatTemplate(source, {}).render(messages, add_generation_prompt=True, **options)


def _theirs(source, messages):
    (text,), _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=True)
    return text


@pytest.mark.parametrize("source", OF_PARTS.values(), ids=OF_PARTS.keys())
def test_a_template_of_parts_shows_every_text(source):
    """As transformers renders it for who knows that it wants parts."""
    expected = _theirs(source, _messages("parts"))

    assert all(text.strip() in expected for _, text in TURNS)
    assert expected == _ours(source, _messages("text")) == _ours(source, _messages("parts"))


@pytest.mark.parametrize("source", OF_TEXTS.values(), ids=OF_TEXTS.keys())
def test_a_template_that_shows_texts_is_given_texts(source):
    """Also where it would take parts: those of one text may be written otherwise."""
    assert _theirs(source, _messages("text")) == _ours(source, _messages("text"))


def test_each_role_has_the_form_that_the_template_reads_it_in():
    """A text for the system and the assistant, parts for the user."""
    forms = {"system": "text", "user": "parts", "assistant": "text"}

    assert _theirs(MIXED, _messages(forms)) == _ours(MIXED, _messages("text"))


@pytest.mark.parametrize(
    ("source", "lost"),
    [
        ("Judge: {% for m in messages %}{% for c in m.content %}{{ c.words }}{% endfor %}{% endfor %}", "user"),
        ("<fixed>", "user"),
        ("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", "system"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "assistant"),
    ],
)
def test_what_a_template_would_leave_out_is_refused_by_its_role(source, lost):
    """With 200 a guard would have judged an empty message. Where nobody says anything in that role, all is well."""
    template = ChatTemplate(source, {})
    said = [message for message in _messages("text") if message["role"] in ("user", lost)]
    with pytest.raises(ChatTemplateError, match=f"leaves out what is said by role '{lost}'"):
        template.render(said, add_generation_prompt=True)

    template.render([{**said[0], "role": lost, "content": " "}], add_generation_prompt=True)
    if lost != "user":
        users = [message for message in said if message["role"] == "user"]
        assert "Hi there" in template.render(users, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
         "{% for m in messages %}{{ m.content }}{% endfor %}", "no system here"),
        ("{{ raise_exception('never') }}", "never"),
    ],
)  # fmt: skip
def test_what_a_template_refuses_is_told_by_the_template(source, named):
    """A probe that it refuses says nothing of the form."""
    with pytest.raises(ChatTemplateError, match=named):
        _ours(source, _messages("text"))


def test_a_template_that_shows_an_assistant_in_the_middle_alone_is_right():
    """Some leave out a last turn that is not the user's."""
    source = "{% for m in messages %}{% if not loop.last or m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"

    assert "Be brief.Hi thereHello!A\nb  " == _ours(source, _messages("text"))


def test_the_form_is_found_once():
    """At load; a chat is rendered as often as it needs to be."""
    rendered = []
    template = ChatTemplate(OF_PARTS["a loop"], {})
    generate = template._template.generate
    template._template.generate = lambda given: rendered.append(given) or generate(given)
    template.render(_messages("text"), add_generation_prompt=True)

    assert 1 == len(rendered)
