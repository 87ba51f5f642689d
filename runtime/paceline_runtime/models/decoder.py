"""The decoder that every family is: an embedding, layers of a mixer and an MLP with a norm before each, a norm and a head.

The family modules build it: their recipes say what the layers are made of. The device's programs and proposers call it as a
`TargetModel`. The next part of a layer adds what the part before it gave and norms the sum, in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from paceline_compat.facts.records import LINEAR_ATTENTION, TargetFacts
from paceline_runtime.batch import ForwardBatch
from paceline_runtime.cache.gated_delta_states import GatedDeltaStates
from paceline_runtime.layers.attention import AttentionContext, attention_context
from paceline_runtime.layers.gated_delta import DeltaContext, delta_context
from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.mlp import gated_mlp
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.layers.rotary import Rotary
from paceline_runtime.models.base import FeatureSink, TargetMemory


@dataclass(frozen=True)
class LayerContext:
    """What the layers of one forward share; `delta` is absent where no layer is recurrent."""

    active: torch.Tensor
    attention: AttentionContext
    delta: DeltaContext | None = None


class HasActive(Protocol):
    """What a layer asks of a forward, whatever else its mixer asks."""

    @property
    def active(self) -> torch.Tensor:
        """Rows that may reach experts: bool [N]."""
        ...


Context = TypeVar("Context", bound=HasActive)
Mixer = Callable[[torch.Tensor, LayerContext], torch.Tensor]
"""Rows [N, H] that see one another, or states, to what is added to them: rows, or parts of rows [P, N, H]."""
MakeMixer = Callable[[str, int, Parameters], Mixer]
"""Builds the mixer of the layer whose tensors' names begin with the name, and of this index among the layers of its kind."""
Mlp = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Rows [N, H] and which of them are active bool [N], to what is added to them, perhaps in parts too."""
MakeMlp = Callable[[str, Parameters], Mlp]
"""Builds the MLP whose tensors' names begin with the name."""


@dataclass(frozen=True)
class Recipe:
    """What a family makes its layers of: `attention` where K/V are kept, `recurrence` where a state is."""

    attention: MakeMixer
    mlp: MakeMlp
    recurrence: MakeMixer | None = None
    zero_centred_norms: bool = False


class DecoderLayer(Generic[Context]):
    """One layer: the residual stream [N, H], and what is still to be added to it, in and out."""

    def __init__(
        self,
        facts: TargetFacts,
        recipe: Recipe,
        name: str,
        mixer: Callable[[torch.Tensor, Context], torch.Tensor],
        parameters: Parameters,
    ) -> None:
        self.mixer_norm, self.mlp_norm = (
            parameters.norm(f"{name}.{part}", facts.hidden_size, facts.rms_norm_eps, zero_centred=recipe.zero_centred_norms)
            for part in ("input_layernorm", "post_attention_layernorm")
        )
        self.mixer, self.mlp = mixer, recipe.mlp(f"{name}.mlp", parameters)

    def __call__(self, hidden: torch.Tensor, added: torch.Tensor | None, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
        """`added` is None where nothing is still to be added."""
        return self.compute(*self.mixer_norm.add(hidden, added), context)

    def compute(self, hidden: torch.Tensor, x: torch.Tensor, context: Context) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer of rows `hidden`, to which nothing is still to be added, and of their norm x."""
        hidden, x = self.mlp_norm.add(hidden, self.mixer(x, context))
        return hidden, self.mlp(x, context.active)


class Decoder:
    """A `TargetModel`. A checkpoint's vision tower and MTP head are passed over."""

    def __init__(self, facts: TargetFacts, recipe: Recipe, parameters: Parameters) -> None:
        self.facts, self.recipe, self._parameters = facts, recipe, parameters
        self.dtype, self.device = parameters.dtype, parameters.device
        self.rotary = Rotary(facts.rope, facts.head_dim, parameters.dtype, parameters.device)
        hidden, eps = facts.hidden_size, facts.rms_norm_eps
        self._embedding = parameters.weight(f"{facts.prefix}.embed_tokens", facts.head_rows, hidden)
        head = self._embedding if facts.tie_word_embeddings else parameters.weight("lm_head", facts.head_rows, hidden)
        # The rows that pad the head are never multiplied.
        self._head = Linear(head.take(slice(facts.vocab_size)), split="rows")
        self._layers = _layers(facts, recipe, parameters)
        self._norm = parameters.norm(f"{facts.prefix}.norm", hidden, eps, zero_centred=recipe.zero_centred_norms)

    def forward(self, batch: ForwardBatch, memory: TargetMemory, sink: FeatureSink | None = None) -> torch.Tensor:
        """Run all layers over the batch's rows: [N, H], the final norm applied. Writes K/V, states and journals."""
        attention = attention_context(batch, memory.pages, self.rotary.table(batch.positions))
        delta = delta_context(batch, memory.states) if self.facts.gdn is not None else None
        context, hidden = LayerContext(batch.active, attention, delta), self._embedding.rows(batch.ids)
        added: torch.Tensor | None = None
        for index, layer in enumerate(self._layers):
            hidden, x = layer.mixer_norm.add(hidden, added)
            _tell(sink, index - 1, hidden)
            hidden, added = layer.compute(hidden, x, context)
        hidden, x = self._norm.add(hidden, added)
        _tell(sink, len(self._layers) - 1, hidden)
        return x

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Input embeddings [..., H] of ids [...]."""
        return self._embedding.rows(ids)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [M, vocab_size] of normed hidden rows [M, H]."""
        return self._head(hidden)

    def make_states(self, tensors: Mapping[str, torch.Tensor]) -> GatedDeltaStates | None:
        """The recurrent states of all layers that keep one."""
        return GatedDeltaStates(tensors) if self.facts.num_linear_layers else None

    def memory_bytes(self) -> int:
        """Bytes of weights held on the device."""
        return self._parameters.memory_bytes()


def _tell(sink: FeatureSink | None, layer: int, hidden: torch.Tensor) -> None:
    """Hand on the output of a layer, once what the layer gave was added where the next one begins."""
    if sink is not None and sink.wants(layer):
        sink.layer_output(layer, hidden)


def _layers(facts: TargetFacts, recipe: Recipe, parameters: Parameters) -> list[DecoderLayer[LayerContext]]:
    """The layers. Those with K/V and recurrent ones are counted apart: pages and states hold no rows for the other kind."""
    counts = {True: 0, False: 0}
    layers: list[DecoderLayer[LayerContext]] = []
    for index, kind in enumerate(facts.layer_types):
        name, is_recurrent = f"{facts.prefix}.layers.{index}", kind == LINEAR_ATTENTION
        make = recipe.recurrence if is_recurrent else recipe.attention
        assert make is not None, f"{facts.family} has no recurrent layers"
        layers.append(DecoderLayer(facts, recipe, name, make(name, counts[is_recurrent], parameters), parameters))
        counts[is_recurrent] += 1
    return layers


def gated_mlps(facts: TargetFacts) -> MakeMlp:
    """MLPs that cost every row the same, active or not."""

    def make(name: str, parameters: Parameters) -> Mlp:
        mlp = gated_mlp(parameters, name, facts.hidden_size, facts.intermediate_size, bias=facts.mlp_bias)
        return lambda x, active: mlp.to_be_added(x)

    return make
