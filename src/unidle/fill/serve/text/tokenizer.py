"""``tokenizer.json``: text to tokens, tokens to text as they arrive, the bytes of a token."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from unidle.errors import BadInput

_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")
_CONTEXT: Final = 6
"""Tokens before the answer that decide how its first token is written, such as whether a space precedes it."""


class TextTokenizer:
    """The tokenizer of a model's directory. Errors: :class:`unidle.errors.BadInput` where it cannot be read."""

    def __init__(self, directory: Path) -> None:
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise BadInput(
                "has no tokenizer.json",
                field="--model",
                value=str(directory),
                remedy="save the model with its fast tokenizer",
            )
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise BadInput(
                f"cannot be read: {error}", field=str(file), remedy="copy the model again"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.longest: int = max(len(token) for token in self._tokenizer.get_vocab(with_added_tokens=True)) + 1
        byte_level = "ByteLevel" in json.dumps(json.loads(file.read_bytes()).get("decoder"))
        self._bytes = (
            {character: byte for byte, character in enumerate(_byte_characters())} if byte_level else None
        )

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of ``text``; ``special``: with those that the tokenizer adds, such as a begin of text."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, without special ones."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def stream(self, before: Sequence[int]) -> TokenStream:
        """Decodes the tokens that follow ``before``."""
        return TokenStream(self._tokenizer, before)

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token adds to text; a character may need several tokens."""
        name: str | None = self._tokenizer.id_to_token(token)
        if name is None:
            return b""
        if self._bytes is not None:
            if all(character in self._bytes for character in name):
                return bytes(self._bytes[character] for character in name)
            return name.encode()
        if byte := _BYTE.fullmatch(name):
            return bytes([int(byte[1], 16)])
        return name.replace("\u2581", " ").encode()


class TokenStream:
    """Text of one answer, in parts that are whole characters."""

    def __init__(self, tokenizer: Any, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._stream: Any = DecodeStream(ids=list(before[-_CONTEXT:]), skip_special_tokens=True)
        self._pending = list[int]()

    def feed(self, token: int) -> str:
        """The text that this token completes; empty within a character."""
        self._pending.append(token)
        text: str | None = self._stream.step(self._tokenizer, token)
        if text is None:
            return ""
        self._pending.clear()
        return text

    def rest(self) -> str:
        """At the end: what is left of an incomplete character, as replacement characters."""
        left, self._pending = self._pending, []
        text: str = self._tokenizer.decode(left, skip_special_tokens=True) if left else ""
        return text


def _byte_characters() -> list[str]:
    """The character by which byte-level BPE writes each byte (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]
