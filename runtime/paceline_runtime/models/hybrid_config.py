"""What a hybrid config says, for both families: Gated DeltaNet layers with full attention in every few of them.

Called by the family modules; knows names of fields, nothing of tensors but the prefix of their names.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline_compat.rope_fields import stated_rope, stretched_positions
from paceline_runtime.cache.gated_delta_states import DeltaShape
from paceline_runtime.layers.rotary import Rope, read_rope
from paceline_runtime.models.config import NORM_EPS, ConfigReader

LINEAR, FULL = "linear_attention", "full_attention"
_FULL_INTERVAL = 4
_ROTARY_FRACTION = 0.25


@dataclass(frozen=True)
class HybridConfig:
    """`prefix` is what the names of the text part's tensors begin with; `layer_types` has one kind per layer.

    `vocab_rows` are the rows that embedding and head are stored with, padding included.
    """

    family: str
    prefix: str
    vocab_size: int
    vocab_rows: int
    hidden_size: int
    layer_types: tuple[str, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float
    rope: Rope
    tied: bool
    eos_ids: tuple[int, ...]
    attention_bias: bool
    delta: DeltaShape

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Layers that keep K/V, in order."""
        return tuple(index for index, kind in enumerate(self.layer_types) if kind == FULL)

    @property
    def num_linear_layers(self) -> int:
        """Layers that keep a recurrent state."""
        return len(self.layer_types) - len(self.attention_layers)


def hybrid_reader(family: str, config: Mapping[str, Any]) -> ConfigReader:
    """A reader over the text part of a config, which multimodal ones nest, before the fields around it.

    But the head lies outside the text part, and whether it is tied is the top level's to say.
    """
    text = dict(config.get("text_config") or {})
    text["eos_token_id"] = _end_ids(config, text)
    if config.get("tie_word_embeddings") is not None:
        text["tie_word_embeddings"] = config["tie_word_embeddings"]
    return ConfigReader(family, ChainMap(text, dict(config)))


def read_hybrid_config(reader: ConfigReader) -> HybridConfig:
    """Read the fields that both families share; problems stay in the reader until its `finish`."""
    reader.refuse_unless_neutral()
    num_heads, num_kv_heads = reader.size("num_attention_heads"), reader.size("num_key_value_heads")
    _check_multiple(reader, "num_attention_heads", num_heads, "num_key_value_heads", num_kv_heads)
    head_dim, vocab_size = reader.size("head_dim", 256), reader.size("vocab_size")
    rope = _read_rope(reader, head_dim)
    return HybridConfig(
        family=reader.family,
        prefix=_prefix(reader),
        vocab_size=vocab_size,
        vocab_rows=reader.size("vocab_rows", vocab_size),
        hidden_size=reader.size("hidden_size"),
        layer_types=_layer_types(reader),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_positions=stretched_positions(reader.size("max_position_embeddings"), rope.kind, rope.fields),
        norm_eps=reader.number("rms_norm_eps", NORM_EPS),
        rope=rope,
        tied=reader.flag("tie_word_embeddings"),
        eos_ids=reader.token_ids("eos_token_id"),
        attention_bias=reader.flag("attention_bias"),
        delta=_delta_shape(reader),
    )


def _prefix(reader: ConfigReader) -> str:
    """As stored; where nothing is, as a multimodal config or a plain one lets expect."""
    usual = "model.language_model" if reader.config.get("text_config") else "model"
    return str(reader.config.get("tensor_prefix") or usual)


def _end_ids(config: Mapping[str, Any], text: Mapping[str, Any]) -> list[Any]:
    """Of the whole checkpoint (the loader has put those of its generation config there) and of its text part."""
    values = [source.get("eos_token_id") for source in (config, text)]
    lists = [value if isinstance(value, list) else [value] for value in values if value is not None]
    return list(dict.fromkeys(token for ids in lists for token in ids))


def _layer_types(reader: ConfigReader) -> tuple[str, ...]:
    num_layers, interval = reader.size("num_hidden_layers"), reader.size("full_attention_interval", _FULL_INTERVAL)
    stated = reader.config.get("layer_types")
    if stated is None:
        return tuple(LINEAR if (index + 1) % interval else FULL for index in range(num_layers))
    if not isinstance(stated, list) or len(stated) != num_layers or not set(stated) <= {LINEAR, FULL}:
        reader.problems.append(f"layer_types must list {num_layers} of {LINEAR} and {FULL}, got {stated!r}")
        return (FULL,) * num_layers
    return tuple(stated)


def _delta_shape(reader: ConfigReader) -> DeltaShape:
    shape = DeltaShape(
        num_key_heads=reader.size("linear_num_key_heads"),
        num_value_heads=reader.size("linear_num_value_heads"),
        key_dim=reader.size("linear_key_head_dim"),
        value_dim=reader.size("linear_value_head_dim"),
        conv_size=reader.size("linear_conv_kernel_dim", 4),
    )
    names = ("linear_num_value_heads", shape.num_value_heads, "linear_num_key_heads", shape.num_key_heads)
    _check_multiple(reader, *names)
    return shape


def _check_multiple(reader: ConfigReader, name: str, value: int, of: str, divisor: int) -> None:
    if value % divisor:
        reader.problems.append(f"{name} {value} is no multiple of {of} {divisor}")


def _read_rope(reader: ConfigReader, head_dim: int) -> Rope:
    """The rope without its sections for images: the positions of text are the same in all three."""
    try:
        fields = stated_rope(reader.config)
        for name in ("mrope_section", "mrope_interleaved"):
            fields.pop(name, None)
        fields.setdefault("partial_rotary_factor", reader.config.get("partial_rotary_factor") or _ROTARY_FRACTION)
        config = {**reader.config, "rope_parameters": fields, "rope_scaling": None, "partial_rotary_factor": None}
        return read_rope(config, head_dim)
    except (ValueError, TypeError, KeyError) as error:
        reader.problems.append(f"rope_parameters: {error}")
        return Rope("default", 10000.0, head_dim, {})
