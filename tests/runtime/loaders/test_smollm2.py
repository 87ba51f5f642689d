"""A real GGUF: SmolLM2-135M-Instruct, whose tensors are Q4_1, Q8_0 and F32, against transformers on the same weights."""

import torch
from smollm2 import smollm2_path
from tiny_models import TinyCache, tiny_prefill, tiny_verify

from paceline_runtime.bench.peer import transformers_llama
from paceline_runtime.loaders import load_target, read_checked
from paceline_runtime.text.load import load_tokenizer

NUM_TOKENS = 64


def transformers_greedy(path, prompt):
    """Ids by transformers' model over the tensors of our reader, whose bits other tests hold against the gguf package."""
    model = transformers_llama(read_checked(path))
    ids = torch.tensor([prompt])
    options = {"do_sample": False, "max_new_tokens": NUM_TOKENS, "pad_token_id": 2, "repetition_penalty": 1.0}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()


def our_greedy(path, prompt):
    model = load_target(path, dtype=torch.float32)
    cache = TinyCache(model.facts, model.dtype, max_tokens=len(prompt) + NUM_TOKENS)
    hidden = model.forward(tiny_prefill(cache, [(0, 0, prompt)]), cache.memory)
    ids = [int(model.logits(hidden[-1:]).argmax())]
    while len(ids) < NUM_TOKENS and ids[-1] not in model.facts.eos_token_ids:
        batch = tiny_verify(cache, [(0, len(prompt) + len(ids) - 1, ids[-1:])])
        ids.append(int(model.logits(model.forward(batch, cache.memory)).argmax()))
    return ids


def test_greedy_text_equals_transformers():
    path, tokenizer = smollm2_path(), load_tokenizer(smollm2_path())
    question = [{"role": "user", "content": "Explain in a paragraph why the moon has phases."}]
    prompt = tokenizer.encode(tokenizer.render_chat(question), add_special_tokens=False)
    with torch.inference_mode():
        ours, theirs = our_greedy(path, prompt), transformers_greedy(path, prompt)
    assert ours == theirs
    assert len(ours) == NUM_TOKENS
    assert "moon" in tokenizer.decode(ours)
