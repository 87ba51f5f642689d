"""Text to token ids through a backend of the `tokenizers` library, as one or a window at a time.

`Tokenizer` has one, and `ControlTokens` another for texts whose control tokens are told apart. It knows ids, no models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tokenizers

from paceline_runtime.text.backend_facts import read_facts
from paceline_runtime.text.gradual import Encoded, GradualEncoding


class Encoder:
    """A backend and what is known of it. `renamed` ids are told as others.

    It takes the backend's post-processor for its own: one would shorten the places of tokens, by which `gradually` cuts.
    """

    def __init__(self, backend: tokenizers.Tokenizer, renamed: Mapping[int, int] | None = None) -> None:
        self.backend, self.facts, self._renamed = backend, read_facts(backend), renamed
        if self.facts.around is not None:
            backend.post_processor = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text. Special tokens spelled in it are read as such; `add_special_tokens` puts the model's own around."""
        encoding = self._gradual(text, add_special_tokens, None)
        encoding.advance()
        return encoding.ids

    @property
    def longest_token_bytes(self) -> int | None:
        """Bytes of text that a token stands for at most, None where there is no such bound; some bytes may have no token."""
        return self.facts.longest_token_bytes

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that the text has at least, by its bytes alone; 0 where nothing is known."""
        longest = self.facts.longest_token_bytes
        return 0 if longest is None else -(-len(text.encode().translate(None, self.facts.silent_bytes)) // longest)

    def gradually(self, text: str, add_special_tokens: bool = True) -> GradualEncoding:
        """What `encode` gives, a window of the text at a time."""
        return self._gradual(text, add_special_tokens, self.facts.cut_margin)

    def _gradual(self, text: str, add_special_tokens: bool, margin: int | None) -> GradualEncoding:
        def encode(text: str) -> Encoded:
            # A batch of one, since `encode` holds the interpreter's lock: 4 MB of text stopped every other thread for 4 s.
            (encoding,) = self.backend.encode_batch([text], add_special_tokens=add_special_tokens and not self.facts.around)
            return encoding if self._renamed is None else _Renamed(encoding, self._renamed)

        first, last = self.facts.around if self.facts.around and add_special_tokens else ([], [])
        return GradualEncoding(encode, text, margin=margin, silent=self.facts.silent_bytes, first=first, last=last)


@dataclass(frozen=True)
class _Renamed:
    """An encoding with other ids."""

    encoding: tokenizers.Encoding
    renamed: Mapping[int, int]

    @property
    def ids(self) -> list[int]:
        return [self.renamed.get(token, token) for token in self.encoding.ids]

    @property
    def word_ids(self) -> Sequence[int | None]:
        return self.encoding.word_ids

    @property
    def offsets(self) -> Sequence[tuple[int, int]]:
        return self.encoding.offsets
