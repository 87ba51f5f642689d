"""SmolLM2 on the CPU: our forward against transformers' generate, same weights, dtype and threads.

Run as `python tests/support/bench_smollm2.py --threads 1`. Pairs are interleaved, since a shared machine drifts by more than
the two differ; the figure is the median ratio.
"""

import argparse
import statistics
import time

import torch
import transformers
from smollm2 import smollm2_path
from tiny_models import TinyCache, tiny_prefill, tiny_verify

from paceline_runtime.loaders import load_target, open_checkpoint


def reference_of(path, dtype):
    """Transformers' model on the weights that our loader dequantizes."""
    checkpoint = open_checkpoint(path)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**checkpoint.config, bos_token_id=1)).to(dtype).eval()
    state = {tensor.name: tensor.read(torch.device("cpu")) for tensor in checkpoint.tensors}
    missing, surplus = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not surplus
    model.tie_weights()
    return model


def greedy(model, prompt, num_tokens):
    """Greedy ids, and the seconds that prefill and decode took."""
    cache = TinyCache(model.shape, model.dtype, max_tokens=len(prompt) + num_tokens)
    begin = time.perf_counter()
    hidden = model.forward(tiny_prefill(cache, [(0, 0, prompt)]), cache.memory)[-1:]
    ids = [int(model.logits(hidden).argmax())]
    middle = time.perf_counter()
    while len(ids) < num_tokens:
        batch = tiny_verify(cache, [(0, len(prompt) + len(ids) - 1, ids[-1:])])
        ids.append(int(model.logits(model.forward(batch, cache.memory)).argmax()))
    return ids, middle - begin, time.perf_counter() - middle


def reference_greedy(model, prompt, num_tokens):
    """The same of transformers' generate: one token is the prefill, the rest of a longer run the decode."""
    seconds, ids = [], []
    for count in (1, num_tokens):
        begin = time.perf_counter()
        ids = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=49151,
        )
        seconds.append(time.perf_counter() - begin)
    return ids[0, len(prompt) :].tolist(), seconds[0], seconds[1] - seconds[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    path = smollm2_path()
    ours, theirs = load_target(path, dtype=torch.float32), reference_of(path, torch.float32)
    prompt = [1, *torch.randint(20, 49000, (arguments.prompt_tokens - 1,)).tolist()]
    pairs = []
    with torch.inference_mode():
        for _ in range(arguments.pairs + 1):
            sides = [run(m, prompt, arguments.new_tokens) for run, m in ((greedy, ours), (reference_greedy, theirs))]
            assert sides[0][0] == sides[1][0], "greedy tokens differ"
            pairs.append(sides)
    for index, (phase, count) in enumerate((("prefill", len(prompt)), ("decode", arguments.new_tokens - 1)), start=1):
        speeds = [[count / side[index] for side in sides] for sides in pairs[1:]]
        ratio = statistics.median(mine / other for mine, other in speeds)
        mine, other = (statistics.median(column) for column in zip(*speeds, strict=True))
        print(f"{phase}: {mine:.1f} tok/s, transformers {other:.1f} tok/s, median ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
