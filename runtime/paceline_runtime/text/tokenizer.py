"""Text to token ids and back, and chat messages to a prompt. `load` makes it; the server and `LLM` use it.

It is built on the `tokenizers` library, from a Hugging Face folder or a GGUF's metadata; transformers is not imported, which
saves a second and its memory. It refuses to know what a request is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from paceline_runtime.text.chat_template import ChatTemplate, ChatTemplateError
from paceline_runtime.text.control_tokens import ControlTokens
from paceline_runtime.text.encoder import Encoder
from paceline_runtime.text.gradual import GradualEncoding


class Tokenizer:
    """A model's tokenizer.

    `vocab_size` counts ids, added tokens included; `bos_id` is None for models without one. `controls` are its special tokens.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str],
        chat_template: str | None,
    ) -> None:
        self._backend, self._encoder = backend, Encoder(backend)
        self.controls = ControlTokens(backend)
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self.bos_id = backend.token_to_id(special_tokens["bos_token"]) if "bos_token" in special_tokens else None
        added = backend.get_added_tokens_decoder()
        self._special_ids = {token.content: token_id for token_id, token in added.items() if token.special}
        self._chat_template = ChatTemplate(chat_template, special_tokens) if chat_template else None

    @property
    def has_chat_template(self) -> bool:
        """Whether `render_chat` can work."""
        return self._chat_template is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text. Special tokens spelled in it are read as such; `add_special_tokens` puts the model's own around."""
        return self._encoder.encode(text, add_special_tokens)

    @property
    def longest_token_bytes(self) -> int | None:
        """Bytes of text that a token stands for at most, None where there is no such bound; some bytes may have no token."""
        return self._encoder.longest_token_bytes

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that the text has at least, by its bytes alone; 0 where nothing is known."""
        return self._encoder.fewest_tokens(text)

    def gradually(self, text: str, add_special_tokens: bool = True) -> GradualEncoding:
        """What `encode` gives, a window of the text at a time."""
        return self._encoder.gradually(text, add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids, U+FFFD for bytes that form no character."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def special_id(self, text: str) -> int | None:
        """The id of a special token, which `decode` skips; None for any other text."""
        return self._special_ids.get(text)

    def token(self, token_id: int) -> str | None:
        """A token as the vocabulary spells it, or None for an id without one."""
        return self._backend.id_to_token(token_id)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        most_chars: int | None = None,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation; encode it without adding special tokens, it holds its own.

        Only the beginning of one that is longer than `most_chars` is rendered, a bit more than so much.
        Raises ChatTemplateError when the model has no template, or the template refuses the messages.
        """
        if self._chat_template is None:
            raise ChatTemplateError("the model has no chat template, use the completions endpoint")
        return self._chat_template.render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, most_chars=most_chars, **variables
        )
