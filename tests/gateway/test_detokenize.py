"""Joined pieces equal decoding at once, and no piece holds part of a character."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from aegaeon_gateway.errors import TokenizerError
from aegaeon_gateway.text.detokenize import Vocabulary

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


WORDS = (
    "▁the",
    "▁",
    "e",
    "Gr",
    "ö",
    "▁▁a▁",
    "▁🙂",
    " ",
    "",
    "a ",
    " .",
    "don't",
    " do not",
    "##ing",
    "##",
    "x</w>",
    "</w>",
)


def any_vocabulary(decoder: Any) -> Tokenizer:
    """Byte tokens, and words that mean something to one decoder or another; added tokens look like either."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    tokenizer = Tokenizer(models.BPE({piece: at for at, piece in enumerate(pieces)}, [], byte_fallback=True))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", " 数字 ")])
    return tokenizer


def sequence(*parts: Any) -> Any:
    return decoders.Sequence(list(parts))


SPACES, BYTES, FUSE = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
DECODERS = {
    "none": None,
    "Llama 2": sequence(SPACES, BYTES, FUSE, decoders.Strip(" ", 1, 0)),
    "Gemma": sequence(SPACES, BYTES, FUSE),
    "not joined": sequence(SPACES, BYTES, decoders.Strip(" ", 1, 0)),
    "bytes alone": BYTES,
    "bytes and Metaspace": sequence(BYTES, decoders.Metaspace()),
    "Metaspace": decoders.Metaspace(),
    "Metaspace, first": decoders.Metaspace(prepend_scheme="first"),
    "Metaspace, never": decoders.Metaspace(prepend_scheme="never"),
    "WordPiece": decoders.WordPiece(),
    "WordPiece as it is": decoders.WordPiece(cleanup=False),
    "BPE": decoders.BPEDecoder(),
    "ByteLevel": decoders.ByteLevel(),
    "ByteLevel among others": sequence(decoders.Replace("e", "a"), decoders.ByteLevel(), decoders.Strip(" ", 1, 0)),
    "Replace behind": sequence(BYTES, FUSE, SPACES),
}
ANY = {name: any_vocabulary(decoder) for name, decoder in DECODERS.items()}
LAST_BYTE, SIZE = 258, ANY["none"].get_vocab_size()
IDS = st.one_of(st.integers(0, SIZE + 2), st.integers(3, LAST_BYTE), st.integers(LAST_BYTE + 1, SIZE - 1))


@pytest.mark.parametrize("name", DECODERS)
@given(tokens=st.lists(IDS, max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_tokens_of_any_decoder_give_the_same_text_as_at_once(name: str, tokens: list[int]) -> None:
    """Broken characters, special tokens in between and ids without a token included, to wherever the output ends."""
    detokenizer = Vocabulary(ANY[name]).detokenizer()
    pieces = [*(detokenizer.feed(token) for token in tokens), detokenizer.flush()]
    assert "".join(pieces) == ANY[name].decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_tokens_give_the_same_text_as_at_once(name: str, data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(0, TOKENIZERS[name].get_vocab_size() - 1)))
    assert "".join(pieces_of(name, tokens)) == TOKENIZERS[name].decode(tokens)


def test_both_ends_are_stripped_as_far_as_asked() -> None:
    """On its own: the library's decode panics where this leaves nothing of a text."""
    detokenizer = Vocabulary(any_vocabulary(sequence(SPACES, FUSE, decoders.Strip(" ", 1, 2)))).detokenizer()
    space, word = LAST_BYTE + 1 + WORDS.index("▁"), LAST_BYTE + 1 + WORDS.index("e")
    pieces = [detokenizer.feed(token) for token in (space, space, word, space, space, word, space, space, space)]
    assert pieces == ["", "", " e", "", "", "  e", "", "", " "]
    assert detokenizer.flush() == ""


def test_an_unknown_decoder_is_refused_by_name() -> None:
    with pytest.raises(TokenizerError, match="CTC"):
        Vocabulary(any_vocabulary(decoders.CTC()))
    for replaced in ("", Regex("[ae]+")):
        with pytest.raises(TokenizerError, match="Replace is not supported"):
            Vocabulary(any_vocabulary(decoders.Replace(replaced, "-")))
    with pytest.raises(TokenizerError, match="Replace behind a Fuse"):
        Vocabulary(any_vocabulary(sequence(FUSE, decoders.Replace("do", "not"))))


def test_a_token_costs_the_same_at_the_end_of_a_long_run_of_bytes() -> None:
    """Nothing of a run is decoded again with each of its tokens."""
    vocabulary = Vocabulary(ANY["Llama 2"])
    detokenizer = vocabulary.detokenizer()
    run = ANY["Llama 2"].encode("ዐ").ids[-3:] * 50_000
    assert [detokenizer.feed(token) for token in run] == [""] * len(run)
    assert detokenizer.flush() == "ዐ" * 50_000


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens_make_no_text_and_cost_no_space(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    [end] = tokenizer.encode("</s>").ids[-1:]
    words = [tokenizer.encode(word).ids for word in ("two", " two", " two")]
    tokens = [end, *words[0], end, end, *words[1], end, *words[2]]
    assert "".join(pieces_of(name, tokens)) == tokenizer.decode(tokens, skip_special_tokens=True)


def test_an_emoji_of_four_tokens_comes_whole() -> None:
    tokens = TOKENIZERS["sentencepiece"].encode("🙃").ids
    [word] = [at for at in range(266) if TOKENIZERS["sentencepiece"].id_to_token(at) == "e"]
    assert pieces_of("sentencepiece", [*tokens[-4:], word]) == ["", "", "", "", "🙃e", ""]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(name: str) -> None:
    tokens = TOKENIZERS[name].encode(SAMPLE).ids
    spelled = b"".join(VOCABULARIES[name].bytes_of(token) for token in tokens).decode()
    assert spelled.removeprefix(" " if name == "sentencepiece" else "") == SAMPLE
