"""MTP: drafts are those of the head computed anew for every text, and text is plain text whatever is accepted."""

from collections import Counter

import pytest
import torch
from hybrid_models import HYBRIDS, save_hybrid
from law_engine import CyclingDepth, make_engine, plain_tokens, record_plans, run
from law_prompts import law_prompts
from mtp_models import FILE, VOCAB_SIZE, save_with_mtp
from no_reads import watch_launches
from safetensors.torch import load_file, save_file
from tiny_models import save_tiny

from paceline_compat.errors import MetadataError
from paceline_compat.memory.layout import MemoryLayout
from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.loaders import load_target
from paceline_runtime.messages import Rebuild
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.mtp.load import load_mtp
from paceline_runtime.speculative.mtp.proposer import draw

MAX_TOKENS = 70
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.8, top_p=0.95, seed=5, ignore_eos=True)
LAGS = pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])


@pytest.fixture(scope="module", params=HYBRIDS)
def pair(request, tmp_path_factory):
    """A checkpoint with a head, and the oracles of both."""
    return save_with_mtp(request.param, tmp_path_factory.mktemp("mtp"))


@pytest.fixture(scope="module")
def target(pair):
    return load_target(pair.path, dtype=torch.float64)


PROMPTS = law_prompts(3, range(VOCAB_SIZE), short=3, page=64, sampled=70, one=1, aborted=30, other=50)
WAVES = (("long", "short", "sampled", "aborted", "page"), ("parted", "long", "other", "sampled", "one"))


@pytest.fixture(scope="module")
def plain(target):
    """Plain text of every greedy prompt."""
    return {name: plain_tokens(target, ids, MAX_TOKENS) for name, ids in PROMPTS.items() if name != "sampled"}


def record_drafts(proposer) -> list[tuple[list[int], list[int]]]:
    """(Text up to the pending token, drafts) of every greedy request and step from now on."""
    seen, propose = [], proposer.propose

    def recording(inputs):
        proposal = propose(inputs)
        for index, (seat, length) in enumerate(zip(inputs.seats, inputs.lengths, strict=True)):
            if seat and inputs.temperature[index] == 0:
                seen.append((inputs.history[seat, : length + 1].tolist(), proposal.tokens[index].tolist()))
        return proposal

    proposer.propose = recording
    return seen


@LAGS
@pytest.mark.parametrize("steps", [1, 3, 7])
def test_speculative_text_equals_plain_text_and_drafts_equal_the_oracles(pair, target, plain, steps, overlap):
    """With hits, chunks, preemptions, aborts and sampled rows beside it."""
    proposer = load_mtp(target, steps)
    drafts = record_drafts(proposer)
    options = dict(num_pages=8, max_prefill_tokens=100, decode_prefill_tokens=64)
    engine = make_engine(target, proposer, overlap=overlap, **options)
    plans = record_plans(engine)
    accepted, accepted_sampled, hits, sampled_texts = Counter(), Counter(), Counter(), []
    for wave in WAVES:
        requests = {name: (PROMPTS[name], SAMPLED if name == "sampled" else GREEDY) for name in wave}
        answers = run(engine, requests, aborts={"aborted": 9} if "aborted" in wave else None)
        engine.executor.memory.states.check_integrity()
        for name, answer in answers.items():
            accepted.update(answer.accepted)
            hits[answer.cached_tokens] += 1
            if name == "sampled":
                sampled_texts.append(answer.token_ids)
                accepted_sampled.update(answer.accepted)
            elif name == "aborted":
                assert plain[name][: len(answer.token_ids)] == answer.token_ids
            else:
                assert plain[name] == answer.token_ids, name

    assert set(range(steps + 1)) <= set(accepted), "an accept length never occurred"
    assert engine.scheduler.num_preemptions > 0
    assert any(hits[cached] for cached in hits if cached), "no prompt was found in the cache"
    assert any(not chunk.is_last for plan in plans for chunk in plan.prefill), "no prompt was cut into chunks"
    assert sampled_texts[0] == sampled_texts[1], "a sampled request beside others, or after a hit, got another text"
    assert len(accepted_sampled) > 1, "sampled drafts all had one fate"
    for text, drafted in drafts[:: max(1, len(drafts) // 40)]:
        assert pair.head.draft(text, steps) == drafted


@LAGS
def test_drafts_after_a_hit_are_those_of_the_whole_text(pair, target, overlap):
    """The head's K/V and the hidden row at the page's end come with the pages, generated ones too."""
    proposer = load_mtp(target, 3)
    engine = make_engine(target, proposer, overlap=overlap)
    first = run(engine, {"long": (PROMPTS["long"], GREEDY)})["long"]
    for prompt, hit in ((PROMPTS["long"], 128), (PROMPTS["long"] + first.token_ids, 256)):
        drafts = record_drafts(proposer)
        again = run(engine, {"again": (prompt, SamplingParams(max_tokens=12, ignore_eos=True))})["again"]
        assert hit == again.cached_tokens
        assert len(drafts) >= 3
        for text, drafted in drafts:
            assert pair.head.draft(text, 3) == drafted


@torch.no_grad()
def first_q(pair, text: list[int], candidates: torch.Tensor) -> torch.Tensor:
    """The oracle's distribution of the token after `text` over the candidates."""
    ids = torch.tensor([text])
    hidden = pair.target.model(ids[:, :-1]).last_hidden_state
    return pair.target.lm_head(pair.head._rows(ids[:, 1:], hidden)[0, -1])[candidates].softmax(-1)


def test_what_drafts_are_drawn_from_is_the_oracles(pair, target):
    """Sensitive to every key that the head sees, the masked slot 0 too: after chunks, accepted drafts and a hit."""
    proposer, seen = load_mtp(target, 3), []
    propose = proposer.propose

    def recording(inputs):
        proposal = propose(inputs)
        for index, (seat, length) in enumerate(zip(inputs.seats, inputs.lengths, strict=True)):
            text = inputs.history[seat, : length + 1].tolist()
            seen.append((text, proposal.candidates[index, 0], proposal.q[index, 0]))
        return proposal

    proposer.propose = recording
    engine = make_engine(target, proposer, max_prefill_tokens=64)
    answers = run(engine, {name: (PROMPTS[name], GREEDY) for name in ("long", "short")})
    again = run(engine, {"again": (PROMPTS["long"] + answers["long"].token_ids, GREEDY)})["again"]
    assert again.cached_tokens == 256
    assert sum(again.accepted) > 0
    for text, candidates, q in seen[::3]:
        torch.testing.assert_close(q, first_q(pair, text, candidates), rtol=0, atol=1e-5)  # transformers' norms are float32


@LAGS
def test_a_verify_of_changing_width_and_a_rebuilt_cache_change_no_text(pair, target, plain, overlap):
    """Drafts after a narrow verify, or none at all, are still the oracle's; so are those in a cache of other sizes."""
    proposer = load_mtp(target, 7)
    drafts = record_drafts(proposer)
    engine = make_engine(target, proposer, overlap=overlap)
    engine._depth = CyclingDepth(7)
    for _ in range(2):
        answers = run(engine, {name: (PROMPTS[name], GREEDY) for name in ("long", "short", "page")})
        assert {name: plain[name] for name in answers} == {name: answer.token_ids for name, answer in answers.items()}
        assert engine.rebuild(Rebuild(num_pages=14)).error is None
    for text, drafted in drafts[:: max(1, len(drafts) // 30)]:
        assert pair.head.draft(text, 7) == drafted


def published_planes(engine, ids) -> dict[str, torch.Tensor]:
    """What the pages that the cache holds of a text keep for the head, in order."""
    scheduler = engine.scheduler
    pages = [node.page for node in scheduler.prefix.match(scheduler.prefix.root_name(""), ids, len(ids) // PAGE_TOKENS)]
    return {name: plane[pages] for name, plane in vars(engine.executor.proposer.pages).items()}


@LAGS
def test_decoding_leaves_in_the_pages_what_a_prefill_writes(pair, target, plain, overlap):
    """Pairs of accepted drafts are the target's hidden rows, not the head's own: a drafted token alone would not tell."""
    engine = make_engine(target, load_mtp(target, 7), overlap=overlap)
    answer = run(engine, {"long": (PROMPTS["long"], GREEDY)})["long"]
    text = PROMPTS["long"] + plain["long"]
    fresh = make_engine(target, load_mtp(target, 7))
    run(fresh, {"all": (text, SamplingParams(max_tokens=1))})
    assert sum(answer.accepted) > 20
    decoded, prefilled = published_planes(engine, text), published_planes(fresh, text)
    assert {4} == {len(plane) for plane in decoded.values()}
    for name, plane in decoded.items():
        torch.testing.assert_close(plane, prefilled[name], rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        hidden = pair.target.model(torch.tensor([text])).last_hidden_state[0]
    expected = hidden[PAGE_TOKENS - 1 : 4 * PAGE_TOKENS : PAGE_TOKENS]
    torch.testing.assert_close(decoded["page_ends"], expected, rtol=0, atol=1e-5)  # transformers' norms are float32


@pytest.mark.parametrize("steps", [1, 7])
def test_the_context_ends_where_it_should(pair, target, steps):
    """Drafting past the last page of the context writes nowhere that counts: what the head has of the text stays."""
    prompt, limit, ends = PROMPTS["short"], 64, []
    proposer = load_mtp(target, steps)
    engine, propose = make_engine(target, proposer, max_model_len=limit, num_pages=4), proposer.propose

    def watching(inputs):
        of_texts = [(page, length) for (page,), length in zip(inputs.page_table, inputs.lengths, strict=True)]
        before = [proposer.pages.keys[page, :length].clone() for page, length in of_texts]
        proposal = propose(inputs)
        for keys, (page, length) in zip(before, of_texts, strict=True):
            assert torch.equal(proposer.pages.keys[page, :length], keys)
            ends.append(int(length) + steps)
        return proposal

    proposer.propose = watching
    answers = run(engine, {name: (prompt, SamplingParams(max_tokens=None, ignore_eos=True)) for name in "ab"})
    expected = plain_tokens(target, prompt, limit - len(prompt))
    assert [expected, expected] == [answer.token_ids for answer in answers.values()]
    assert max(ends) > limit or steps == 1, "no draft stood past the context"


def test_a_proposal_reads_nothing_back(pair, target, monkeypatch):
    """Neither the head nor the hybrid target waits for the device inside a launch."""
    engine = make_engine(target, load_mtp(target, 3), overlap=True, max_prefill_tokens=64)
    seen = watch_launches(engine, monkeypatch)
    run(engine, {"long": (PROMPTS["long"], GREEDY), "sampled": (PROMPTS["sampled"], SAMPLED)})
    run(engine, {"again": (PROMPTS["long"], GREEDY)})
    assert sum(bool(plan.decode) for plan in seen) > 10
    assert any(start.num_cached for plan in seen for start in plan.starts)
    assert any(plan.flushes for plan in seen) or any(row.snapshot_slot for plan in seen for row in plan.decode)


def test_the_head_counts_its_bytes(pair, target):
    """Weights and kept rows, and a page holds its K/V and one hidden row."""
    proposer = load_mtp(target, 3)
    weights = sum(parameter.nbytes for parameter in pair.head.parameters())
    assert weights == proposer.memory_bytes()
    layout = MemoryLayout(proposer.buffers, num_pages=5, num_seats=3)
    assert 5 * (2 * 64 * 2 * 16 + 64) * 8 + 3 * (4 * target.facts.hidden_size * 8 + 8) == layout.num_bytes()
    assert [(5, 64, 2, 16), (5, 64, 2, 16), (5, 64)] == [layout.shape(buffer) for buffer in proposer.buffers[:3]]


def test_sampled_drafts_are_drawn_from_the_q_they_come_with():
    """The likeliest few at the request's temperature; greedy rows take the first; the same key draws the same again."""
    count, logits = 40_000, torch.randn(1, 50, dtype=torch.float64) * 2
    temperature = torch.tensor([0.7]).expand(count)
    positions, seeds = torch.full((count,), 9), torch.arange(count)
    tokens, ids, q = draw(logits.expand(count, -1), temperature, seeds, positions)
    best = logits[0].topk(16)
    assert torch.equal(ids[0], best.indices)
    torch.testing.assert_close(q[0], (best.values / 0.7).softmax(0))
    counts = (tokens[:, None] == ids).sum(0)
    expected = q[0] * count
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert count == counts.sum()
    assert (statistic - 15) / 30**0.5 < 4.5
    assert torch.equal(tokens, draw(logits.expand(count, -1), temperature, seeds, positions)[0])
    assert not torch.equal(tokens, draw(logits.expand(count, -1), temperature, seeds, positions + 1)[0])
    greedy, _, _ = draw(logits, torch.zeros(1), seeds[:1], positions[:1])
    assert logits.argmax() == greedy


def test_the_smallest_temperature_draws_the_likeliest_from_a_q_of_numbers():
    """A q that is no distribution would have every draft rejected."""
    logits = torch.randn(3, 50, dtype=torch.float64) * 2
    tokens, _, q = draw(logits, torch.full((3,), 5e-324, dtype=torch.float64), torch.arange(3), torch.arange(3))
    assert torch.equal(logits.argmax(-1), tokens)
    assert torch.equal(torch.eye(16, dtype=torch.float64)[[0, 0, 0]], q)


def test_a_checkpoint_without_a_head_is_refused(tmp_path):
    path = save_hybrid("qwen3_5", tmp_path)
    with pytest.raises(MetadataError, match=r"holds no MTP head \(no tensor mtp\.\*\).*use ngram"):
        load_mtp(load_target(path, dtype=torch.float64), 3)


def test_a_family_without_a_head_is_refused(tmp_path):
    path = save_tiny("qwen3", tmp_path, num_hidden_layers=1)
    with pytest.raises(MetadataError, match="models of family qwen3 have no MTP head"):
        load_mtp(load_target(path, dtype=torch.float64), 3)


@pytest.mark.parametrize("steps", [0, 8])
def test_a_depth_out_of_range_is_refused(pair, target, steps):
    with pytest.raises(ValueError, match=f"mtp drafts 1 to 7 tokens a step, not {steps}"):
        load_mtp(target, steps)


def test_lost_and_surplus_tensors_of_the_head_are_named(tmp_path):
    """A second layer, embeddings of its own: what the head here does not compute."""
    path = save_with_mtp("qwen3_5", tmp_path).path
    tensors = load_file(path / FILE)
    tensors["mtp.embed_tokens.weight"] = tensors.pop("mtp.fc.weight")
    save_file(tensors, path / FILE)
    with pytest.raises(MetadataError, match=r"missing mtp\.fc\.weight.*surplus mtp\.embed_tokens\.weight"):
        load_mtp(load_target(path, dtype=torch.float64), 3)
