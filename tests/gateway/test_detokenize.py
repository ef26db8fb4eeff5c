"""Joined pieces equal decoding at once, and no piece holds part of a character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from aegaeon_gateway.detokenize import Vocabulary

SAMPLE = "Größe 🙂👩‍👩‍👧 数字 naïve  two  spaces\n\ttabs “quotes” عربى"


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "t"), ("Ġt", "h"), ("Ã", "¶"), ("ð", "Ł"), ("ðŁ", "ĺ")]
    vocabulary = [*alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(vocabulary)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("数字", normalized=False)])
    return tokenizer


def sentencepiece() -> Tokenizer:
    """Like Llama 2 and Mistral: spaces as U+2581, unknown characters as bytes, the first space stripped."""
    words = ["▁the", "▁", "▁two", "e", "t", "Gr", "ö", "spaces", "▁spaces", "“", "▁🙂"]
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokenizer = Tokenizer(
        models.BPE({piece: at for at, piece in enumerate(vocabulary)}, [], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


TOKENIZERS = {"byte-level": byte_level(), "sentencepiece": sentencepiece()}
VOCABULARIES = {name: Vocabulary(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def pieces_of(name: str, tokens: list[int]) -> list[str]:
    detokenizer = VOCABULARIES[name].detokenizer()
    return [*(detokenizer.feed(token) for token in tokens), detokenizer.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.one_of(st.text(), st.text(alphabet=sorted(set(SAMPLE)))))
@settings(max_examples=150, deadline=None)
def test_joined_pieces_of_any_text_are_the_text_decoded_at_once(name: str, text: str) -> None:
    tokens = TOKENIZERS[name].encode(text).ids
    pieces = pieces_of(name, tokens)
    assert "".join(pieces) == TOKENIZERS[name].decode(tokens)
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@given(tokens=st.lists(st.integers(0, TOKENIZERS["byte-level"].get_vocab_size() - 1)))
@settings(max_examples=300, deadline=None)
def test_any_byte_level_tokens_give_the_same_text_as_at_once_broken_characters_included(tokens: list[int]) -> None:
    assert "".join(pieces_of("byte-level", tokens)) == TOKENIZERS["byte-level"].decode(tokens)


@given(tokens=st.lists(st.integers(0, TOKENIZERS["sentencepiece"].get_vocab_size() - 1)))
@settings(max_examples=300, deadline=None)
def test_broken_bytes_of_byte_fallback_never_stop_the_text(tokens: list[int]) -> None:
    words = [token for token in tokens if token > 258]
    pieces = "".join(pieces_of("sentencepiece", tokens))
    for word in words:
        assert VOCABULARIES["sentencepiece"].bytes_of(word).decode().strip() in pieces


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens_make_no_text_and_cost_no_space(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    [end] = tokenizer.encode("</s>").ids[-1:]
    words = [tokenizer.encode(word).ids for word in ("two", " two", " two")]
    tokens = [end, *words[0], end, end, *words[1], end, *words[2]]
    assert "".join(pieces_of(name, tokens)) == tokenizer.decode(tokens, skip_special_tokens=True)


def test_an_emoji_of_four_tokens_comes_whole() -> None:
    tokens = TOKENIZERS["sentencepiece"].encode("🙃").ids
    assert [piece for piece in pieces_of("sentencepiece", tokens[-4:]) if piece] == ["🙃"]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(name: str) -> None:
    tokens = TOKENIZERS[name].encode(SAMPLE).ids
    spelled = b"".join(VOCABULARIES[name].bytes_of(token) for token in tokens).decode()
    assert spelled.removeprefix(" " if name == "sentencepiece" else "") == SAMPLE
