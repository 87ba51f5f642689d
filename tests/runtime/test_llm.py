"""The offline interface: prompts in, texts out; what ends a text is no part of it; one bad prompt and nothing runs."""

import gc
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tiny_served import save_served

from paceline_compat.facts import checkpoint
from paceline_compat.formats import safetensors_header
from paceline_runtime import LLM, SamplingParams
from paceline_runtime.text.gradual import GradualEncoding

PROMPT = "to be or not to be"
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    """A tiny llama with a tokenizer, drafting by n-grams."""
    folder = save_served(tmp_path_factory.mktemp("model"))
    return LLM(str(folder), dtype=torch.float64, num_pages=32, speculative_algorithm="ngram", max_model_len=256)


def test_texts_are_those_of_the_tokens(llm):
    """Two prompts together, in order, each with its usage."""
    answers = llm.generate([PROMPT, "be"], PARAMS)

    assert [PARAMS.max_tokens] * 2 == [answer.usage.completion_tokens for answer in answers]
    assert [llm.tokenizer.decode(answer.token_ids) for answer in answers] == [answer.text for answer in answers]
    assert [len(llm.tokenizer.encode(prompt)) for prompt in (PROMPT, "be")] == [a.usage.prompt_tokens for a in answers]
    assert ["length", "length"] == [answer.finish_reason for answer in answers]
    assert llm.generate(["be"], PARAMS)[0].text == answers[1].text


def test_config_and_headers_are_read_once(tmp_path, monkeypatch):
    """Rules, memory plan and model take the same facts."""
    reads = Counter()

    def counting(name, read):
        def counted(source):
            reads[f"{name} of {source.name}"] += 1
            return read(source)

        return counted

    for name, module in (("read_json", checkpoint), ("read_folder", safetensors_header)):
        monkeypatch.setattr(module, name, counting(name, getattr(module, name)))
    folder = save_served(tmp_path)
    LLM(str(folder), dtype=torch.float64, num_pages=4, max_model_len=64)

    assert 1 == reads[f"read_json of {folder}/config.json"] == reads[f"read_folder of {folder}"] == max(reads.values())


def test_token_ids_do_as_well_as_a_text(llm):
    """And each prompt may have parameters of its own."""
    texts = llm.generate([PROMPT, llm.tokenizer.encode(PROMPT)], [PARAMS, SamplingParams(max_tokens=5, ignore_eos=True)])

    assert texts[0].token_ids[:5] == texts[1].token_ids


def test_whether_there_is_a_text_depends_on_the_call_alone(llm):
    """Not on whether an earlier one has loaded the tokenizer."""
    ids = llm.tokenizer.encode(PROMPT)
    stopped = SamplingParams(max_tokens=24, ignore_eos=True, stop=("never said",))

    assert "" == llm.generate([ids], PARAMS)[0].text
    assert llm.generate([PROMPT], PARAMS)[0].text == llm.generate([ids], stopped)[0].text != ""


def test_a_text_ends_before_what_ended_it(llm):
    """A stop string inside a token's text, and a stop token."""
    whole = llm.generate([PROMPT], PARAMS)[0]
    stop = whole.text[9:12]
    at_string = llm.generate([PROMPT], SamplingParams(max_tokens=24, ignore_eos=True, stop=(stop,)))[0]
    token = whole.token_ids[12]
    at_token = llm.generate([PROMPT], SamplingParams(max_tokens=24, ignore_eos=True, stop_token_ids=(token,)))[0]
    num_before = whole.token_ids.index(token)

    assert whole.text.partition(stop)[0] == at_string.text
    assert ("stop", stop) == (at_string.finish_reason, at_string.stop_text)
    assert llm.tokenizer.decode(whole.token_ids[:num_before]) == at_token.text
    assert ("stop", num_before + 1) == (at_token.finish_reason, len(at_token.token_ids))


@pytest.mark.parametrize("stops", [("<user>",), ("never said", "<user>"), ("<user>", "<eos>")])
def test_a_stop_that_is_a_special_token_stops_there(llm, stops):
    """Though ends are ignored, and however many drafts are in flight."""
    (user,) = llm.tokenizer.encode("<user>")
    word = llm.generate([PROMPT], PARAMS)[0].token_ids[0]
    options = {"max_tokens": 24, "ignore_eos": True, "frequency_penalty": 2.0, "logit_bias": {user: 100.0, word: 100.5}}
    said = llm.generate([PROMPT], SamplingParams(**options))[0].token_ids
    answer = llm.generate([PROMPT], SamplingParams(**options, stop=stops))[0]

    assert {user, word} == {*said}
    assert said[: said.index(user) + 1] == answer.token_ids
    assert ("stop", None, llm.tokenizer.decode(answer.token_ids)) == (answer.finish_reason, answer.stop_text, answer.text)


def test_one_bad_prompt_and_nothing_runs(llm):
    """The error names it, and those before it are taken back."""
    with pytest.raises(ValueError, match=r"prompt 1: .*empty"):
        llm.generate([PROMPT, []], PARAMS)
    with pytest.raises(ValueError, match="2 prompts, but 1 sampling parameters"):
        llm.generate([PROMPT, PROMPT], [PARAMS])

    assert not llm.engine.has_work


def test_a_text_that_is_too_long_is_not_tokenized_to_its_end(llm, monkeypatch):
    """Its bytes may tell, before any other prompt is tokenized; else the tokens that the context holds."""
    advanced = []
    monkeypatch.setattr(GradualEncoding, "advance", _noting(GradualEncoding.advance, advanced))
    with pytest.raises(ValueError, match=r"prompt 1: the text has at least \d+ tokens, but the context holds 256, one of them"):
        llm.generate([PROMPT, "ab" * 10**6], PARAMS)
    assert [] == advanced

    with pytest.raises(ValueError, match=r"prompt 1: the text has 300 tokens, but the context holds 256"):
        llm.generate([PROMPT, "x" * 300], PARAMS)
    assert [len(llm.tokenizer.encode(PROMPT)), 300] == advanced[:2]
    assert not llm.engine.has_work


def _noting(advance, advanced):
    def noting(encoding):
        advance(encoding)
        advanced.append(len(encoding.ids))

    return noting


def test_a_string_is_no_list_of_its_characters(llm):
    """Neither as prompts nor as stop strings."""
    with pytest.raises(ValueError, match="prompts must be a list"):
        llm.generate(PROMPT, PARAMS)
    with pytest.raises(ValueError, match="prompt 0: stop must be a list"):
        llm.generate([PROMPT], SamplingParams(stop="be"))


def test_a_prompt_of_the_wrong_type_takes_the_others_back(llm):
    """Whatever is raised while they are queued, the next call answers as ever."""
    with pytest.raises(TypeError):
        llm.generate([PROMPT, ["word"]], PARAMS)

    assert not llm.engine.has_work
    assert 1 == len(llm.generate([PROMPT], PARAMS))


def test_what_was_interrupted_leaves_nothing_behind(llm, monkeypatch):
    """Ctrl-C in the middle, and the next call answers as ever."""
    before, step, count = llm.generate([PROMPT], PARAMS)[0].token_ids, llm.engine.step, iter(range(100))

    def interrupted():
        if next(count) == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([PROMPT, "be"], PARAMS)
    monkeypatch.undo()

    assert before == llm.generate([PROMPT], PARAMS)[0].token_ids
    llm.engine.check_integrity()


def test_the_model_goes_with_the_last_use_of_it(tmp_path):
    """A second one is planned with the memory of the first, and may come before Python looks for cycles."""
    llm = LLM(str(save_served(tmp_path)), num_pages=16)
    llm.generate([PROMPT], PARAMS)
    target, pages = weakref.ref(llm.engine.executor.target), weakref.ref(llm.engine.executor.memory.pages)
    gc.disable()
    try:
        del llm
        assert (None, None) == (target(), pages())
    finally:
        gc.enable()


def test_threads_may_share_it(llm):
    """Each gets its own answers, the same as alone."""
    prompts = [PROMPT, "be", "or not", "to"]
    alone = [llm.generate([prompt], PARAMS)[0].token_ids for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = pool.map(lambda prompt: llm.generate([prompt], PARAMS)[0].token_ids, prompts)

    assert alone == list(together)


def test_another_cache_changes_no_text(llm):
    """A rebuild to fewer pages takes effect; one that cannot hold a context changes nothing."""
    before = llm.generate([PROMPT], PARAMS)[0].token_ids
    llm.rebuild_cache(num_pages=8)
    with pytest.raises(ValueError, match="1 fit"):
        llm.rebuild_cache(num_pages=1)

    assert 8 == llm.engine.stats().num_pages
    assert before == llm.generate([PROMPT], PARAMS)[0].token_ids
