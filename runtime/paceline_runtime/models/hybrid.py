"""The decoder that `qwen3_5` and `qwen3_5_moe` are: Gated DeltaNet layers, gated full attention in every few of them.

The families differ in the MLP, which they hand in. Called by the executor and proposers as a `TargetModel`; the MTP head is
built of the same parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline_compat.activations import attention_values, delta_values, layer_values
from paceline_kernels.delta_step import DeltaWeights
from paceline_runtime.batch import ForwardBatch
from paceline_runtime.cache.gated_delta_states import GatedDeltaStates, state_dtype
from paceline_runtime.layers.attention import AttentionContext, attention_context
from paceline_runtime.layers.gated_attention import GatedAttention
from paceline_runtime.layers.gated_delta import DeltaContext, GatedDeltaNet, delta_context
from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.layers.rotary import Rotary
from paceline_runtime.models.base import FeatureSink, ModelShape, TargetMemory
from paceline_runtime.models.hybrid_config import FULL, HybridConfig
from paceline_runtime.models.residual import Stream, through_layers

Mlp = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Rows [N, H] and which of them are active bool [N], to what is added to rows [N, H], perhaps in parts."""
MakeMlp = Callable[[str, Parameters], Mlp]
"""Builds the MLP whose tensors' names begin with the given name."""


@dataclass(frozen=True)
class HybridContext:
    """What the layers of one forward share; `delta` is absent where no layer is recurrent."""

    active: torch.Tensor
    attention: AttentionContext
    delta: DeltaContext | None = None


Mixer = Callable[[torch.Tensor, HybridContext], torch.Tensor]


class HybridLayer:
    """One layer: the residual stream [N, H], and what is still to be added to it, in and out."""

    def __init__(self, config: HybridConfig, name: str, mixer: Mixer, make_mlp: MakeMlp, parameters: Parameters) -> None:
        self.mixer_norm, self.mlp_norm = (
            parameters.norm(f"{name}.{part}", config.hidden_size, config.norm_eps, zero_centred=True)
            for part in ("input_layernorm", "post_attention_layernorm")
        )
        self.mixer, self.mlp = mixer, make_mlp(f"{name}.mlp", parameters)

    def __call__(self, hidden: torch.Tensor, added: torch.Tensor | None, context: HybridContext) -> Stream:
        hidden, x = self.mixer_norm.add(hidden, added)
        hidden, x = self.mlp_norm.add(hidden, self.mixer(x, context))
        return hidden, self.mlp(x, context.active)


def attention_layer(config: HybridConfig, name: str, kv_layer: int, make_mlp: MakeMlp, parameters: Parameters) -> HybridLayer:
    """A layer of full attention over the K/V pages of layer `kv_layer`."""
    attention = gated_attention(config, f"{name}.self_attn", kv_layer, parameters)
    return HybridLayer(config, name, lambda x, context: attention(x, context.attention), make_mlp, parameters)


def delta_layer(config: HybridConfig, name: str, state_layer: int, make_mlp: MakeMlp, parameters: Parameters) -> HybridLayer:
    """A recurrent layer over the states of layer `state_layer`."""
    delta = _delta(config, f"{name}.linear_attn", state_layer, parameters)

    def mix(x: torch.Tensor, context: HybridContext) -> torch.Tensor:
        assert context.delta is not None, "a recurrent layer needs states"
        return delta(x, context.delta)

    return HybridLayer(config, name, mix, make_mlp, parameters)


def gated_attention(config: HybridConfig, name: str, layer: int, parameters: Parameters) -> GatedAttention:
    """The attention whose tensors' names begin with `name`, over the K/V pages of layer `layer`."""
    heads, kv_heads, head_dim, bias = config.num_heads, config.num_kv_heads, config.head_dim, config.attention_bias
    rows = {"q_proj": 2 * heads * head_dim, "k_proj": kv_heads * head_dim, "v_proj": kv_heads * head_dim}
    return GatedAttention(
        parameters.linear({f"{name}.{part}": size for part, size in rows.items()}, config.hidden_size, split="rows", bias=bias),
        parameters.linear({f"{name}.o_proj": config.hidden_size}, heads * head_dim, split="columns", bias=bias),
        *(parameters.norm(f"{name}.{part}", head_dim, config.norm_eps, zero_centred=True) for part in ("q_norm", "k_norm")),
        layer=layer,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
    )


def _delta(config: HybridConfig, name: str, layer: int, parameters: Parameters) -> GatedDeltaNet:
    shape, wide = config.delta, state_dtype(parameters.dtype)
    rows = {"qkv": shape.conv_channels, "z": shape.value_width, "b": shape.num_value_heads, "a": shape.num_value_heads}
    projections = {f"{name}.in_proj_{part}": size for part, size in rows.items()}
    return GatedDeltaNet(
        parameters.linear(projections, config.hidden_size, split="rows"),
        DeltaWeights(
            conv=parameters.tensor(f"{name}.conv1d.weight", shape.conv_channels, 1, shape.conv_size)[:, 0],
            log_rate=parameters.tensor(f"{name}.A_log", shape.num_value_heads, dtype=wide),
            rate_bias=parameters.tensor(f"{name}.dt_bias", shape.num_value_heads, dtype=wide),
            norm=parameters.tensor(f"{name}.norm.weight", shape.value_dim, dtype=wide),
            norm_eps=config.norm_eps,
            num_key_heads=shape.num_key_heads,
            num_value_heads=shape.num_value_heads,
            key_dim=shape.key_dim,
            value_dim=shape.value_dim,
        ),
        parameters.linear({f"{name}.out_proj": config.hidden_size}, shape.value_width, split="columns"),
        layer=layer,
    )


class HybridDecoder:
    """A `TargetModel`: embedding, layers, final norm, head. A checkpoint's vision tower and MTP head are passed over."""

    def __init__(self, config: HybridConfig, make_mlp: MakeMlp, parameters: Parameters, *, mlp_values: int) -> None:
        self.config, self.make_mlp = config, make_mlp
        self.shape = _shape(config, parameters.dtype, mlp_values)
        self.dtype, self.device, self._parameters = parameters.dtype, parameters.device, parameters
        self.rotary = Rotary(config.rope, parameters.dtype, parameters.device)
        self._make_ends(config, parameters)
        self._layers = _layers(config, make_mlp, parameters)
        self._norm = parameters.norm(f"{config.prefix}.norm", config.hidden_size, config.norm_eps, zero_centred=True)
        parameters.ignored += ["mtp.", "model.mtp.", "model.visual.", "visual."]

    def forward(self, batch: ForwardBatch, memory: TargetMemory, sink: FeatureSink | None = None) -> torch.Tensor:
        """Run all layers over the batch's rows: [N, H], the final norm applied. Writes K/V, states and journals."""
        attention = attention_context(batch, memory.pages, self.rotary.table(batch.positions))
        context = HybridContext(batch.active, attention, delta_context(batch, memory.states))
        return through_layers(self._layers, self._embedding.rows(batch.ids), context, self._norm, sink)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Input embeddings [..., H] of ids [...]."""
        return self._embedding.rows(ids)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [M, vocab_size] of normed hidden rows [M, H]."""
        return self._head(hidden)

    def make_states(self, num_slots: int, num_rows: int, journal_rows: int) -> GatedDeltaStates:
        """The recurrent states of all linear layers."""
        return GatedDeltaStates(
            self.config.delta,
            num_layers=self.config.num_linear_layers,
            num_slots=num_slots,
            num_rows=num_rows,
            journal_rows=journal_rows,
            dtype=self.dtype,
            device=self.device,
        )

    def memory_bytes(self) -> int:
        """Bytes of weights held on the device."""
        return self._parameters.memory_bytes()

    def _make_ends(self, config: HybridConfig, parameters: Parameters) -> None:
        rows, hidden = config.vocab_rows, config.hidden_size
        self._embedding = parameters.weight(f"{config.prefix}.embed_tokens", rows, hidden)
        if config.tied:
            parameters.copy("lm_head", self._embedding)
        head = self._embedding if config.tied else parameters.weight("lm_head", rows, hidden)
        self._head = Linear(head.take(slice(config.vocab_size)), split="rows")


def _layers(config: HybridConfig, make_mlp: MakeMlp, parameters: Parameters) -> list[HybridLayer]:
    """Each kind counts its own layers: K/V pages and states hold no rows for the other."""
    counts = dict.fromkeys(config.layer_types, 0)
    layers: list[HybridLayer] = []
    for index, kind in enumerate(config.layer_types):
        make = attention_layer if kind == FULL else delta_layer
        layers.append(make(config, f"{config.prefix}.layers.{index}", counts[kind], make_mlp, parameters))
        counts[kind] += 1
    return layers


def _shape(config: HybridConfig, dtype: torch.dtype, mlp_values: int) -> ModelShape:
    attention = attention_values(config.num_heads, config.num_kv_heads, config.head_dim, gated=True)
    return ModelShape(
        family=config.family,
        num_layers=len(config.layer_types),
        attention_layers=config.attention_layers,
        hidden_size=config.hidden_size,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        max_positions=config.max_positions,
        eos_ids=config.eos_ids,
        layer_values=layer_values(config.hidden_size, attention, delta_values(config.delta.facts), mlp_values),
        state_bytes_per_slot=config.num_linear_layers * config.delta.slot_bytes(dtype),
        journal_row_bytes=config.num_linear_layers * config.delta.journal_row_bytes(dtype),
    )
