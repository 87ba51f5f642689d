"""Writes a tiny llama as GGUF the way llama.cpp's converter does, with the `gguf` package's writer."""

from pathlib import Path

import gguf
import torch

from paceline_compat.facts.families import BY_GGUF_ARCHITECTURE
from paceline_compat.facts.gguf_names import TOP

_MODULE_NAMES = {ours: stored for stored, ours in BY_GGUF_ARCHITECTURE["llama"].gguf.modules.items()}
_TOP_NAMES = {ours: stored for stored, ours in TOP.items()}


def save_tiny_gguf(
    model, path: Path, *, architecture="llama", kind: str = "F32", extra_keys=None, tokens=None, rope_divisors=None
) -> Path:
    """Write a transformers llama, or what is written like one, to `path`; matrices as `kind`, vectors as F32.

    `extra_keys`: metadata name -> int, list or str; they win.
    """
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    for key, value in {
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
    }.items():
        if f"{architecture}.{key}" not in (extra_keys or {}):
            writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_key_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_token_list(tokens or [f"t{index}" for index in range(config.vocab_size)])
    writer.add_eos_token_id(config.eos_token_id)
    for key, value in (extra_keys or {}).items():
        add = {int: writer.add_int32, list: writer.add_array, str: writer.add_string}[type(value)]
        add(key, value)
    if rope_divisors is not None:
        writer.add_tensor("rope_freqs.weight", rope_divisors.numpy())
    for name, tensor in model.state_dict().items():
        if not (config.tie_word_embeddings and name == "lm_head.weight"):
            _add(writer, name, tensor.float(), config, kind, is_paired=architecture == "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    layer, module = name.removeprefix("model.layers.").split(".", 1)
    module, suffix = module.rsplit(".", 1)
    return f"blk.{layer}.{_MODULE_NAMES[module]}.{suffix}"


def _add(writer, name, tensor, config, kind, *, is_paired):
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads and is_paired:
        halves = tensor.view(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
        tensor = halves.transpose(1, 2).reshape(tensor.shape)
    quantized = gguf.GGMLQuantizationType[kind if tensor.ndim > 1 else "F32"]
    data = gguf.quants.quantize(tensor.contiguous().numpy(), quantized)
    writer.add_tensor(stored_name(name), data, raw_dtype=quantized)


def random_blocks(kind: str, num_blocks: int, seed: int = 0) -> torch.Tensor:
    """Random bytes as blocks of a ggml type, uint8 [n, block_bytes]; factors are kept finite."""
    generator = torch.Generator().manual_seed(seed)
    _, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = torch.randint(0, 256, (num_blocks, block_bytes), dtype=torch.uint8, generator=generator)
    for offset in {"Q4_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}.get(kind, (0,)):
        blocks[:, offset + 1] &= 0xBB  # clears an exponent bit: neither infinity nor NaN
    return blocks
