"""The dense decoder that llama and qwen3 are: attention and a gated MLP per layer, RMS norms before each.

Built by the family modules from a `DecoderConfig`; called by the executor and proposers as a `TargetModel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from paceline_compat.activations import attention_values, layer_values, mlp_values
from paceline_compat.rope_fields import stretched_positions
from paceline_runtime.batch import ForwardBatch
from paceline_runtime.layers.attention import Attention, AttentionContext, attention_context
from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.mlp import gated_mlp
from paceline_runtime.layers.norm import RmsNorm
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.layers.rotary import Rope, Rotary, read_rope
from paceline_runtime.models.base import FeatureSink, ModelShape, TargetMemory
from paceline_runtime.models.config import NORM_EPS, ConfigReader
from paceline_runtime.models.residual import Stream, through_layers


@dataclass(frozen=True)
class DecoderConfig:
    """What a dense decoder is made of. `vocab_rows` are the rows that embedding and head are stored with, padding included."""

    family: str
    vocab_size: int
    vocab_rows: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float
    rope: Rope
    tied: bool
    eos_ids: tuple[int, ...]
    attention_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False


def read_decoder_config(reader: ConfigReader, *, head_norms: bool = False) -> DecoderConfig:
    """Read the fields that dense decoders share; problems stay in the reader until its `finish`."""
    config = reader.config
    hidden_size, num_heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    num_kv_heads = reader.size("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        reader.problems.append(f"num_attention_heads {num_heads} is no multiple of num_key_value_heads {num_kv_heads}")
    head_dim = reader.size("head_dim", hidden_size // num_heads)
    vocab_size, rope = reader.size("vocab_size"), _read_rope(reader, config, head_dim)
    return DecoderConfig(
        family=reader.family,
        vocab_size=vocab_size,
        vocab_rows=reader.size("vocab_rows", vocab_size),
        hidden_size=hidden_size,
        intermediate_size=reader.size("intermediate_size"),
        num_layers=reader.size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=stretched_positions(reader.size("max_position_embeddings"), rope.kind, rope.fields),
        norm_eps=reader.number("rms_norm_eps", NORM_EPS),
        rope=rope,
        tied=reader.flag("tie_word_embeddings"),
        eos_ids=reader.token_ids("eos_token_id"),
        attention_bias=reader.flag("attention_bias"),
        mlp_bias=reader.flag("mlp_bias"),
        head_norms=head_norms,
    )


def _read_rope(reader: ConfigReader, config: Mapping[str, Any], head_dim: int) -> Rope:
    if head_dim % 2:
        reader.problems.append(f"head_dim {head_dim} is odd, and values are rotated in pairs")
    try:
        rope = read_rope(config, head_dim)
    except (ValueError, TypeError, KeyError) as error:
        reader.problems.append(f"rope_parameters: {error}")
        return Rope("default", 10000.0, head_dim, {})
    if rope.width != head_dim:
        reader.problems.append(f"partial_rotary_factor = {rope.width / head_dim} is not supported, it must be 1.0")
    return rope


class DecoderLayer:
    """One layer: the residual stream [N, H], and what is still to be added to it, in and out."""

    def __init__(self, config: DecoderConfig, index: int, parameters: Parameters) -> None:
        name, hidden, eps = f"model.layers.{index}", config.hidden_size, config.norm_eps
        self.attention_norm = parameters.norm(f"{name}.input_layernorm", hidden, eps)
        self.attention = _attention(config, index, parameters)
        self.mlp_norm = parameters.norm(f"{name}.post_attention_layernorm", hidden, eps)
        self.mlp = gated_mlp(parameters, f"{name}.mlp", hidden, config.intermediate_size, bias=config.mlp_bias)

    def __call__(self, hidden: torch.Tensor, added: torch.Tensor | None, context: AttentionContext) -> Stream:
        hidden, x = self.attention_norm.add(hidden, added)
        hidden, x = self.mlp_norm.add(hidden, self.attention(x, context))
        return hidden, self.mlp.to_be_added(x)


def _attention(config: DecoderConfig, index: int, parameters: Parameters) -> Attention:
    name, rows, kv_rows = (
        f"model.layers.{index}.self_attn",
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    )
    qkv = {f"{name}.q_proj": rows, f"{name}.k_proj": kv_rows, f"{name}.v_proj": kv_rows}
    norms: list[RmsNorm | None] = [None, None]
    if config.head_norms:
        norms = [parameters.norm(f"{name}.{part}", config.head_dim, config.norm_eps) for part in ("q_norm", "k_norm")]
    return Attention(
        parameters.linear(qkv, config.hidden_size, split="rows", bias=config.attention_bias),
        parameters.linear({f"{name}.o_proj": config.hidden_size}, rows, split="columns", bias=config.attention_bias),
        layer=index,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        q_norm=norms[0],
        k_norm=norms[1],
    )


class DenseDecoder:
    """A `TargetModel`: embedding, layers, final norm, head."""

    def __init__(self, config: DecoderConfig, parameters: Parameters) -> None:
        self.shape = _shape(config)
        self.dtype, self.device, self._parameters = parameters.dtype, parameters.device, parameters
        rows, hidden = config.vocab_rows, config.hidden_size
        self._embedding = parameters.weight("model.embed_tokens", rows, hidden)
        if config.tied:
            parameters.copy("lm_head", self._embedding)
        head = self._embedding if config.tied else parameters.weight("lm_head", rows, hidden)
        self._head = Linear(head.take(slice(config.vocab_size)), split="rows")
        parameters.ignored_suffixes.append(".rotary_emb.inv_freq")
        self._rotary = Rotary(config.rope, parameters.dtype, parameters.device)
        self._layers = [DecoderLayer(config, index, parameters) for index in range(config.num_layers)]
        self._norm = parameters.norm("model.norm", hidden, config.norm_eps)

    def forward(self, batch: ForwardBatch, memory: TargetMemory, sink: FeatureSink | None = None) -> torch.Tensor:
        """Run all layers over the batch's rows: [N, H], the final norm applied. Writes K/V of the rows."""
        context = attention_context(batch, memory.pages, self._rotary.table(batch.positions))
        return through_layers(self._layers, self._embedding.rows(batch.ids), context, self._norm, sink)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Input embeddings [..., H] of ids [...]."""
        return self._embedding.rows(ids)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [M, vocab_size] of normed hidden rows [M, H]."""
        return self._head(hidden)

    def make_states(self, num_slots: int, num_rows: int, journal_rows: int) -> None:
        """None: dense decoders keep no recurrent state."""

    def memory_bytes(self) -> int:
        """Bytes of weights held on the device."""
        return self._parameters.memory_bytes()


def _shape(config: DecoderConfig) -> ModelShape:
    return ModelShape(
        family=config.family,
        num_layers=config.num_layers,
        attention_layers=tuple(range(config.num_layers)),
        hidden_size=config.hidden_size,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        max_positions=config.max_positions,
        eos_ids=config.eos_ids,
        layer_values=layer_values(
            config.hidden_size,
            attention_values(config.num_heads, config.num_kv_heads, config.head_dim, gated=False),
            mlp_values(config.intermediate_size),
        ),
    )
