"""Tokenizers from GGUF metadata and from folders, chat templates, ends of generation."""

import json
import unicodedata

import gguf
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from smollm2 import smollm2_path
from tokenizers import decoders, models, pre_tokenizers

from paceline_compat import read_target
from paceline_compat.errors import MetadataError
from paceline_runtime.text.chat_template import ChatTemplate, ChatTemplateError
from paceline_runtime.text.end_tokens import end_ids
from paceline_runtime.text.load import load_tokenizer

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces   and\ttabs\n\n\nlines \r\n",
    "don't I'll WE'VE it's",
    "in 2024, 3.14159 and 1,234,567 or x86_64",
    "def f(x):\n    return x**2  # comment\n",
    "naïve café, 日本語のテキスト, مرحبا, हिन्दी, emoji 🙂👩‍👩‍👧",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "https://example.org/a?b=c&d=%20#frag <div class='x'>",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"), ("1", "2"), ("12", "3"), ("Ġ", "Ġ")]
MERGES += [("d", "o"), ("'", "t")]


def byte_level_tokens():
    return SPECIAL + sorted(pre_tokenizers.ByteLevel.alphabet()) + list(dict.fromkeys(a + b for a, b in MERGES))


def write_gguf(path, *, model="gpt2", pre="smollm", tokens=None, merges=MERGES, **keys):
    tokens = tokens or byte_level_tokens()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    kinds = [keys.get("kind_of_special", 3) if token in SPECIAL else 4 if token.startswith("<user") else 1 for token in tokens]
    writer.add_token_types(kinds[: keys.get("num_kinds")])
    if merges is not None:
        writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(keys.get("bos", 1))
    writer.add_eos_token_id(2)
    if "add_bos" in keys:
        writer.add_add_bos_token(keys["add_bos"])
    if "template" in keys:
        writer.add_chat_template(keys["template"])
    writer.add_tensor("x", __import__("numpy").zeros(4, dtype="float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def pieces(tokenizer, text):
    """Tokens of a text, spelled as text."""
    return [tokenizer.decode([token], skip_special_tokens=False) for token in tokenizer.encode(text, False)]


def test_smollm2_from_its_gguf_equals_transformers():
    """One slow load on transformers' side (7 s), so everything about this file is compared here.

    Not compared: `½` and the like, which the model's own tokenizer cuts as digits; transformers' reading of a GGUF drops
    the splitting rule.
    """
    import transformers

    path = smollm2_path()
    ours = load_tokenizer(path)
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids), text
    messages = [{"role": "user", "content": "Two facts?"}, {"role": "assistant", "content": "One."}]
    for start in (0, 1):
        for add_generation_prompt in (True, False):
            expected = theirs.apply_chat_template(messages[start:], tokenize=False, add_generation_prompt=add_generation_prompt)
            assert ours.render_chat(messages[start:], add_generation_prompt) == expected
    assert (ours.vocab_size, ours.bos_id) == (len(theirs), theirs.bos_token_id)
    assert end_ids(path, read_target(str(path)).eos_token_ids) == (0, 2, 4)
    assert [ours.token(token) for token in (0, 2, 4)] == ["<|endoftext|>", "<|im_end|>", "<reponame>"]


@pytest.mark.parametrize(
    "pre,text,expected",
    [
        ("smollm", "hello 123", ["hello", " ", "1", "2", "3"]),
        ("smollm", "hello hello", ["hello", " hello"]),
        ("gpt-2", "hello123", ["hello", "123"]),
        ("llama-bpe", "hello1231", ["hello", "123", "1"]),
        ("qwen2", "hello123", ["hello", "1", "2", "3"]),
        ("qwen35", "hello123", ["hello", "1", "2", "3"]),
        ("llama-bpe", "DON'T", ["D", "O", "N", "'", "T"]),
        ("qwen2", "don't", ["do", "n", "'t"]),
        ("qwen2", "x  hello", ["x", " ", " hello"]),
    ],
)
def test_each_pre_tokenizer_cuts_text_as_its_name_says(tmp_path, pre, text, expected):
    assert pieces(load_tokenizer(write_gguf(tmp_path / "m.gguf", pre=pre)), text) == expected


def test_qwen2_cuts_equal_those_of_transformers(tmp_path):
    from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

    vocabulary = {token: index for index, token in enumerate(byte_level_tokens())}
    theirs = Qwen2Tokenizer(vocab=vocabulary, merges=MERGES, additional_special_tokens=SPECIAL)
    ours = load_tokenizer(write_gguf(tmp_path / "m.gguf", pre="qwen2"))
    for text in [*TEXTS, "hello hello 123 e\u0301 don't"]:
        assert ours.encode(text) == theirs.encode(text), text


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    return load_tokenizer(write_gguf(tmp_path_factory.mktemp("vocabulary") / "m.gguf", pre="qwen2"))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_comes_back_from_its_ids_in_normal_form(byte_level, text):
    normal = unicodedata.normalize("NFC", text)
    assert byte_level.decode(byte_level.encode(text, False), skip_special_tokens=False) == normal


def test_whole_words_in_the_vocabulary_win_over_merges_for_llama3(tmp_path):
    tokens = [*byte_level_tokens(), "xyz"]
    for pre, expected in (("llama-bpe", ["xyz"]), ("qwen2", ["x", "y", "z"])):
        assert pieces(load_tokenizer(write_gguf(tmp_path / f"{pre}.gguf", pre=pre, tokens=tokens)), "xyz") == expected


@pytest.mark.parametrize("pre,keys,adds", [("llama-bpe", {}, True), ("llama-bpe", {"add_bos": False}, False)])
def test_the_begin_token_is_added_where_the_file_or_its_rule_says_so(tmp_path, pre, keys, adds):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", pre=pre, **keys))
    plain = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello") == ([1] if adds else []) + plain


def test_user_defined_tokens_are_matched_and_survive_decoding(tmp_path):
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", tokens=[*byte_level_tokens(), "<user_tool>"]))
    ids = tokenizer.encode("he<user_tool><|im_end|>")
    assert ids[-1] == 2
    assert tokenizer.decode(ids) == "he<user_tool>"


@pytest.mark.parametrize("kind, start", [(1, list("<|im_start|>")), (4, ["<|im_start|>"])])
def test_what_is_spelled_as_an_end_is_a_control_token_whatever_the_file_says(tmp_path, kind, start):
    """llama.cpp warns of such files, which are many, and overrides them; the other tokens keep the kind they have."""
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", kind_of_special=kind))
    ids = tokenizer.encode("<|im_start|>hello<|im_end|>")
    assert [tokenizer.token(token) for token in ids] == [*start, "hello", "<|im_end|>"]
    assert tokenizer.decode(ids) == "<|im_start|>hello"


@pytest.mark.parametrize(
    "keys,named",
    [
        ({"model": "llama"}, "'llama' is not supported"),
        ({"pre": "tekken"}, "'tekken' is not supported; there are .*qwen2"),
        ({"bos": 9999}, "bos_token_id"),
        ({"tokens": ["a", "b", "a"], "merges": []}, "twice"),
        ({"merges": [("zz", "yy")]}, "merges"),
        ({"merges": [("a",)]}, "merges"),
        ({"merges": None}, r"^[^:]*: metadata key 'tokenizer.ggml.merges' is missing"),
        ({"num_kinds": 2}, "has 2 kinds for 269 tokens"),
    ],
)
def test_vocabularies_that_are_not_read_are_refused_by_name(tmp_path, keys, named):
    with pytest.raises(MetadataError, match=named):
        load_tokenizer(write_gguf(tmp_path / "m.gguf", **keys))


def folder_tokenizer(path, **config):
    vocabulary = {token: index for index, token in enumerate(byte_level_tokens())}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def test_a_folder_gives_its_tokens_template_and_ends(tmp_path):
    eos = {"content": "<|im_end|>", "special": True}
    template = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ eos_token }}|{{ mood }}"}]
    path = folder_tokenizer(tmp_path, eos_token=eos, bos_token="<|im_start|>", chat_template=template)
    tokenizer = load_tokenizer(path)
    assert (end_ids(path, (0, 7)), tokenizer.bos_id) == ((0, 2, 7), 1)
    assert tokenizer.render_chat([], mood="fine") == "<|im_end|>|fine"
    assert tokenizer.decode(tokenizer.encode("hello <|im_end|>")) == "hello "


END, FLAGGED = "<|im_end|>", {"content": "<|im_end|>", "lstrip": True, "rstrip": True, "normalized": False, "special": True}
ONLY_IN_CONFIG = {
    "named": ({"eos_token": END}, {}),
    "with flags": ({"eos_token": {"__type": "AddedToken", **FLAGGED}}, {}),
    "listed": ({"additional_special_tokens": [END, "<|im_start|>"]}, {}),
    "another kind": ({"sep_token": END, "call_token": "<|im_start|>", "chat_template": "{{ sep_token }}{{ call_token }}"}, {}),
    "named apart": ({"extra_special_tokens": {"image_token": END}, "chat_template": "{{ image_token }}"}, {}),
    "named apart, later": ({"model_specific_special_tokens": {"image_token": END}, "chat_template": "{{ image_token }}"}, {}),
    "by id": ({"added_tokens_decoder": {"2": FLAGGED, "1": {"content": "<|im_start|>", "special": False}}}, {}),
    "in the map": ({"eos_token": "<|endoftext|>", "chat_template": "{{ eos_token }}|{{ bos_token }}"}, {"eos_token": END}),
    "map beside ids": ({"added_tokens_decoder": {}, "chat_template": "{{ bos_token }}"}, {"bos_token": "<|im_start|>"}),
    "without an id": ({"eos_token": "<|nowhere|>"}, {}),
}


@pytest.mark.parametrize("config, special_map", ONLY_IN_CONFIG.values(), ids=ONLY_IN_CONFIG.keys())
def test_tokens_that_only_the_config_calls_special_are_those_of_transformers(tmp_path, config, special_map):
    """Ids, decoded text and template; transformers invents ids for tokens without one, which no model has rows for."""
    from transformers import PreTrainedTokenizerFast

    path = folder_tokenizer(tmp_path, **config)
    stored = json.loads((path / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps(stored | {"added_tokens": []}))
    (path / "special_tokens_map.json").write_text(json.dumps(special_map))
    ours, theirs = load_tokenizer(path), PreTrainedTokenizerFast.from_pretrained(path)
    for text in ("<|im_start|>user\nhello <|im_end|> <|im_end|>\n", "<|endoftext|>"):
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    if "chat_template" in config:
        assert ours.render_chat([]) == theirs.apply_chat_template([{"role": "user", "content": ""}], tokenize=False)
    assert ours.vocab_size == len(byte_level_tokens())


def test_a_prompt_is_neither_cut_nor_padded_as_the_trainer_did(tmp_path):
    """A tokenizer saved after such a call has both in its file; transformers undoes them at every call, too."""
    path = folder_tokenizer(tmp_path)
    stored = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    text, whole = "hello hello 123", stored.encode("hello hello 123").ids
    stored.enable_truncation(2)
    stored.enable_padding(length=16)
    stored.save(str(path / "tokenizer.json"))
    assert load_tokenizer(path).encode(text) == whole


def test_a_template_file_wins_over_the_config(tmp_path):
    path = folder_tokenizer(tmp_path, chat_template="config")
    (path / "chat_template.jinja").write_text("file")
    assert load_tokenizer(path).render_chat([]) == "file"


def test_without_a_template_chat_is_refused(tmp_path):
    tokenizer = load_tokenizer(folder_tokenizer(tmp_path))
    assert not tokenizer.has_chat_template
    with pytest.raises(ChatTemplateError, match="no chat template"):
        tokenizer.render_chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("content,named", [(None, "no such file"), ("{}", "is not a tokenizer")])
def test_a_folder_without_a_readable_tokenizer_is_refused(tmp_path, content, named):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(MetadataError, match=named):
        load_tokenizer(tmp_path)


def test_a_folder_that_is_not_there_is_said_to_be_missing_not_its_tokenizer(tmp_path):
    with pytest.raises(MetadataError, match="no such folder"):
        load_tokenizer(tmp_path / "elsewhere")


@pytest.mark.parametrize("template", [["text"], [{"name": ["default"], "template": "x"}], {"default": "x"}])
def test_templates_in_no_known_form_are_none(tmp_path, template):
    assert not load_tokenizer(folder_tokenizer(tmp_path, chat_template=template)).has_chat_template


def test_a_template_file_that_is_no_text_is_named(tmp_path):
    path = folder_tokenizer(tmp_path)
    (path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(MetadataError, match=r"chat_template\.jinja: is not UTF-8"):
        load_tokenizer(path)


def render(source, **variables):
    return ChatTemplate(source, {"bos_token": "<s>"}).render([], add_generation_prompt=True, **variables)


def test_the_template_dialect_is_that_of_transformers():
    assert render("{{ bos_token }}{{ x | tojson }}", x={"b": "é<", "a": 1}) == '<s>{"b": "é<", "a": 1}'
    assert render("{{ x | tojson(separators=(',', ':')) }}", x={"b": 1, "a": 2}) == '{"b":1,"a":2}'
    assert render("{{ x | tojson(True, None, (',', ':')) }}", x={"é": 1, "a": 2}) == '{"\\u00e9":1,"a":2}'
    assert render("{{ documents is defined }}{{ documents is none }}") == "TrueTrue"
    assert render("{% for i in range(5) %}\n  {% if i == 2 %}{% break %}{% endif %}\n{{ i }}{% endfor %}") == "01"
    assert render("a{% generation %}b{{ 1 }}{% endgeneration %}c") == "ab1c"
    assert len(render("{{ strftime_now('%Y') }}")) == 4


@pytest.mark.parametrize(
    "source,named",
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{{ ''.__class__.__mro__ }}", "refuses"),
        ("{{ ('{0.__class__.__mro__}' | attr('format'))(messages) }}", "unsafe"),  # Jinja before 3.1.6 shows it
        ("{{ messages[0].content }}", "refuses"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ range(10 ** 9) | list }}", "Range too big"),
        ("{{ 'a' * 10 ** 18 }}", "MemoryError"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "recursion"),
    ],
)
def test_what_a_template_refuses_or_must_not_do_is_an_error(source, named):
    with pytest.raises(ChatTemplateError, match=named):
        render(source)


def test_a_variable_may_replace_a_token_as_in_transformers():
    """And is not refused as if the messages were wrong."""
    assert "<begin>" == render("{{ bos_token }}", bos_token="<begin>")


@pytest.mark.parametrize("source", ["{% for %}", "{{" + "(" * 3000 + "1" + ")" * 3000 + "}}"])
def test_a_template_that_does_not_compile_is_named(source):
    with pytest.raises(ChatTemplateError, match="does not compile"):
        ChatTemplate(source, {})
