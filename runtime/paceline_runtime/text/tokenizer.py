"""Text to token ids and back, and chat messages to a prompt. Used by the server and by offline generation; made by `load`.

Built on the `tokenizers` library, from a Hugging Face folder or a GGUF's metadata; transformers is not imported, which
saves a second and its memory. It refuses to know what a request is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from paceline_runtime.text.chat_template import ChatTemplate, ChatTemplateError


class Tokenizer:
    """A model's tokenizer.

    `vocab_size` counts ids, added tokens included; `bos_id` is None for models without one.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str],
        chat_template: str | None,
    ) -> None:
        self._backend = backend
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self.bos_id = backend.token_to_id(special_tokens["bos_token"]) if "bos_token" in special_tokens else None
        self._chat_template = ChatTemplate(chat_template, special_tokens) if chat_template else None

    @property
    def has_chat_template(self) -> bool:
        """Whether `render_chat` can work."""
        return self._chat_template is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text. Special tokens spelled in it are read as such; `add_special_tokens` puts the model's own around."""
        # A batch of one, since `encode` holds the interpreter's lock: 4 MB of text stopped every other thread for 4 s.
        (encoding,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids, U+FFFD for bytes that form no character."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it, or None for an id without one."""
        return self._backend.id_to_token(token_id)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation; encode it without adding special tokens, it holds its own.

        Raises ChatTemplateError when the model has no template, or the template refuses the messages.
        """
        if self._chat_template is None:
            raise ChatTemplateError("the model has no chat template, use the completions endpoint")
        return self._chat_template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools, **variables)
