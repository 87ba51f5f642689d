"""Tiny hybrids with an MTP head, on disk and as an oracle put together from transformers' modules, which has no MTP of its own.

The head's input is mostly the token's embedding, and the output matrix maps an embedding to the next token's, so head and
target often agree on the next token, and often not.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

import torch
from hybrid_models import lasting, make_hybrid
from safetensors.torch import load_file, save_file

FILE = "model.safetensors"
CLASSES = {"qwen3_5": "Qwen3_5", "qwen3_5_moe": "Qwen3_5Moe"}
VOCAB_SIZE = 64
SPREADS = {"qwen3_5": (0.15, 0.12), "qwen3_5_moe": (0.17, 0.11)}
"""Of the target's and of the head's weights: at these every accept length from 0 to 7 occurs within a few hundred tokens."""


class OracleHead(torch.nn.Module):
    """The head as its publishers describe it; the whole text is computed anew for every draft."""

    def __init__(self, family: str, target: torch.nn.Module) -> None:
        super().__init__()
        module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        layer, norm = (getattr(module, f"{CLASSES[family]}{name}") for name in ("DecoderLayer", "RMSNorm"))
        config = target.config
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (norm(config.hidden_size) for _ in range(3))
        self.fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = torch.nn.ModuleList([layer(config, config.layer_types.index("full_attention"))])
        self._target = [target]

    @torch.no_grad()
    def draft(self, text: list[int], num_steps: int) -> list[int]:
        """Drafts after `text`, whose last token is pending: the target has seen the ones before it."""
        (target,), ids = self._target, torch.tensor([text])
        hidden = target.model(ids[:, :-1]).last_hidden_state
        drafts: list[int] = []
        for _ in range(num_steps):
            out = self._rows(ids[:, 1:], hidden)
            drafts.append(int(target.lm_head(out[:, -1]).argmax()))
            ids = torch.cat((ids, torch.tensor([drafts[-1:]])), dim=1)
            hidden = torch.cat((hidden, out[:, -1:]), dim=1)
        return drafts

    def _rows(self, ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Pair t is the hidden row t with the token after it, at position t."""
        (target,) = self._target
        embedding = self.pre_fc_norm_embedding(target.get_input_embeddings()(ids))
        x = self.fc(torch.cat((embedding, self.pre_fc_norm_hidden(hidden)), dim=-1))
        positions, length = torch.arange(ids.shape[1])[None], ids.shape[1]
        mask = torch.full((length, length), -torch.inf, dtype=x.dtype).triu(1)[None, None]
        rotary = target.model.rotary_emb(x, positions)
        return self.norm(self.layers[0](x, position_embeddings=rotary, attention_mask=mask, position_ids=positions))


@dataclass(frozen=True)
class MtpPair:
    """A checkpoint with a head, and its two oracles."""

    path: Path
    target: torch.nn.Module
    head: OracleHead


@torch.no_grad()
def save_with_mtp(family: str, folder: Path, **overrides) -> MtpPair:
    """Write a hybrid of three layers and its head to `folder / family`, in float64."""
    scale, noise = SPREADS[family]
    layers = ["linear_attention", "full_attention", "linear_attention"]
    fields = dict(vocab_size=VOCAB_SIZE, eos_token_id=None, num_hidden_layers=3, layer_types=layers, scale=scale)
    model = lasting(make_hybrid(family, **{**fields, **overrides}))
    model.config._experts_implementation = "eager"
    embedding = model.get_input_embeddings().weight
    embedding[:, 0] = 4.0
    model.lm_head.weight[torch.arange(VOCAB_SIZE).roll(-1)] = embedding
    model.lm_head.weight[:, 0] = 0.0
    head = _random_head(OracleHead(family, model), noise)
    path = folder / family
    model.save_pretrained(path)
    tensors = {f"mtp.{name}": tensor.clone() for name, tensor in head.state_dict().items()}
    save_file({**load_file(path / FILE), **tensors}, path / FILE, metadata={"format": "pt"})
    return MtpPair(path, model, head)


def _random_head(head: OracleHead, noise: float) -> OracleHead:
    head = head.double().eval()
    for parameter in head.parameters():
        parameter.normal_(0, noise / (parameter.shape[-1] / 64) ** 0.5 if parameter.ndim > 1 else 0.1)
    hidden_size = head.fc.out_features
    head.fc.weight[:, :hidden_size] += torch.eye(hidden_size, dtype=torch.float64)
    return head
