"""The weights of a DFlash 2 draft: reading them from safetensors and putting together what the forward multiplies with.

Called by the loader. Headers are held against the file (by `paceline_compat`) and against the config before any tensor is
read, so a lying header costs no memory. It refuses to know what the forward does with the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from safetensors import safe_open

from paceline_compat.draft_tensors import CODEBOOKS, expected_shapes
from paceline_compat.facts import DraftFacts
from paceline_compat.tensors import TensorInfo
from paceline_runtime.speculative.dflash.config import DraftConfig


class DraftWeightsError(ValueError):
    """A draft's files that are not what its config promises; the message lists every tensor that is wrong."""


@dataclass(frozen=True)
class ConvWeights:
    """base: [2 sides, T, H]; projection: [2 * T * G, H], both sides' dynamic kernels from one normed input."""

    base: torch.Tensor
    projection: torch.Tensor


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. key_value: [2 * Hkv * D, H], a view of `DraftWeights.key_value`; gate_up: [2 * I, H]."""

    input_norm: torch.Tensor
    post_attention_norm: torch.Tensor
    q_proj: torch.Tensor
    key_value: torch.Tensor
    o_proj: torch.Tensor
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    attention_conv: ConvWeights
    mlp_conv: ConvWeights
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class DraftWeights:
    """A draft on its device, in its dtype.

    fc:        one [H, H] view per tapped layer, so that taps are summed without being concatenated
    key_value: [L, 2, Hkv * D, H], of all layers together: context rows are projected to all of them at once
    """

    fc: tuple[torch.Tensor, ...]
    hidden_norm: torch.Tensor
    norm: torch.Tensor
    key_value: torch.Tensor
    layers: tuple[LayerWeights, ...]
    selector_hidden: torch.Tensor
    predecessor: torch.Tensor
    successor: torch.Tensor

    def memory_bytes(self) -> int:
        """Bytes held on the device, shared storage counted once."""
        storages = [tensor.untyped_storage() for tensor in _tensors(self)]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _tensors(part: Any) -> Iterator[torch.Tensor]:
    if isinstance(part, torch.Tensor):
        yield part
    else:
        for inner in part if isinstance(part, tuple) else (getattr(part, field.name) for field in fields(part)):
            yield from _tensors(inner)


def load_weights(facts: DraftFacts, dtype: torch.dtype, device: torch.device) -> DraftWeights:
    """Read a draft's safetensors to the device, whatever float dtype they are stored in.

    Raises DraftWeightsError for tensors that are missing, unknown, misshapen or not finite. Packed
    dtypes are refused before, by the rules.
    """
    if problems := _header_problems(facts.tensors, expected_shapes(facts)):
        raise DraftWeightsError(f"{facts.name}: " + "; ".join(problems))
    tensors = {name: _read(info).to(device=device, dtype=dtype) for name, info in facts.tensors.items()}
    if broken := [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]:
        raise DraftWeightsError(f"{facts.name}: NaN or infinite values in {', '.join(broken)}; download the draft again")
    return assemble(DraftConfig.from_facts(facts), tensors)


def _header_problems(infos: Mapping[str, TensorInfo], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    missing = [f"{name} is missing" for name in shapes if name not in infos]
    unknown = [f"{info.name} is not part of a DFlash 2 draft" for name, info in infos.items() if name not in shapes]
    known = [(shapes[name], info) for name, info in infos.items() if name in shapes]
    misshapen = [f"{info.name} is {list(info.shape)}, not {list(shape)}" for shape, info in known if info.shape != shape]
    return missing + unknown + misshapen


def _read(info: TensorInfo) -> torch.Tensor:
    with safe_open(info.file, framework="pt") as file:
        tensor: torch.Tensor = file.get_tensor(info.name)
    return tensor


def assemble(config: DraftConfig, tensors: dict[str, torch.Tensor]) -> DraftWeights:
    """Put tensors under released names together; takes them out of `tensors`, so that no weight is held twice."""
    prefixes = [f"layers.{layer}." for layer in range(config.num_layers)]
    pairs = [(f"{prefix}self_attn.k_proj.weight", f"{prefix}self_attn.v_proj.weight") for prefix in prefixes]
    key_value = torch.stack([torch.stack([tensors.pop(name) for name in pair]) for pair in pairs])
    return DraftWeights(
        fc=torch.split(tensors.pop("fc.weight"), config.hidden_size, 1),
        hidden_norm=tensors.pop("hidden_norm.weight"),
        norm=tensors.pop("norm.weight"),
        key_value=key_value,
        layers=tuple(_layer(tensors, prefix, key_value[layer]) for layer, prefix in enumerate(prefixes)),
        selector_hidden=tensors.pop("candidate_selector.hidden_projection.weight"),
        predecessor=tensors.pop(CODEBOOKS[0]),
        successor=tensors.pop(CODEBOOKS[1]),
    )


def _layer(tensors: dict[str, torch.Tensor], prefix: str, key_value: torch.Tensor) -> LayerWeights:
    def take(name: str) -> torch.Tensor:
        return tensors.pop(prefix + name)

    def conv(name: str) -> ConvWeights:
        return ConvWeights(take(f"{name}.base_kernel"), take(f"{name}.kernel_projection.weight"))

    return LayerWeights(
        input_norm=take("input_layernorm.weight"),
        post_attention_norm=take("post_attention_layernorm.weight"),
        q_proj=take("self_attn.q_proj.weight"),
        key_value=key_value.flatten(0, 1),
        o_proj=take("self_attn.o_proj.weight"),
        q_norm=take("self_attn.q_norm.weight"),
        k_norm=take("self_attn.k_norm.weight"),
        attention_conv=conv("attention_conv"),
        mlp_conv=conv("mlp_conv"),
        gate_up=torch.cat((take("mlp.gate_proj.weight"), take("mlp.up_proj.weight"))),
        down=take("mlp.down_proj.weight"),
    )
