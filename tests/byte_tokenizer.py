"""The smallest tokenizer that grammars can be compiled for: the 256 bytes and EOS."""

from __future__ import annotations

from llguidance import LLTokenizer, TokenizerWrapper


class _Bytes:
    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([i]) for i in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()))
