"""What other people's exceptions say, without what is secret in it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_proto.credentials import CredentialsError, s3_keys, token_of
from aegaeon_proto.redaction import MOST_CHARS, redact, remember, sentence


@pytest.mark.parametrize(
    "text",
    [
        "GET http://user:S3cr3tWord@h/p failed",
        "url: /bucket/key?X-Amz-Signature=S3cr3tWord&x=1",
        "https://h/p?token=S3cr3tWord#f",
        "Invalid header value b'Bearer S3cr3tWord'",
        "Authorization: Basic S3cr3tWord",
        "{'aws_secret_access_key': 'S3cr3tWord'}",
        "api_key=S3cr3tWord",
        "hf_S3cr3tWord",
        "AKIAS3CR3TWORDXX S3cr3tWord"[:16],
        "eyJS3cr3tWord.eyJabcdefgh.S3cr3tWord",
    ],
)
def test_no_secret_is_left(text: str) -> None:
    said = sentence(RuntimeError(text))
    assert "s3cr3tword" not in said.lower()
    assert said.startswith("RuntimeError: ")


def test_a_credential_that_was_read_is_never_repeated(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("p+in/wörd=".replace("ö", "o") + "\n")
    token = token_of(str(file))
    assert token not in redact(f"sent {token}, quoted p%2Bin%2Fword%3D")
    assert "p%2Bin" not in redact("quoted p%2Bin%2Fword%3D")


@pytest.mark.parametrize("secrets", [("Elder/23", "Elder/23-and-more"), ("Elder/24-and-more", "Elder/24")])
def test_a_secret_with_another_as_prefix_is_redacted_completely(secrets: tuple[str, str]) -> None:
    remember(secrets)
    longer = max(secrets, key=len)
    assert redact(f"sent {longer}, quoted {quote(longer, safe='')}") == "sent [redacted], quoted [redacted]"


def test_a_secret_at_the_cut_of_a_long_text_is_redacted_completely() -> None:
    remember(["a-secret-of-some-length"])
    for blanks in range(8170, 8192):
        assert "a-secret" not in redact(" " * blanks + "a-secret-of-some-length")


def test_text_without_secrets_is_unchanged() -> None:
    text = "An error occurred (NoSuchBucket) when calling the ListObjectsV2 operation: http://h:9/a/b is not there"
    assert redact(text) == text


def test_an_exception_that_cannot_be_printed_has_its_name() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("S3cr3tWord")

    assert sentence(BrokenError()) == "BrokenError"
    assert sentence(MemoryError()) == "MemoryError"


@given(st.text(max_size=2000), st.text(max_size=20))
def test_any_text_becomes_one_bounded_printable_line(text: str, more: str) -> None:
    said = redact(text + f" http://u:S3cr3tWord@h/p?q=S3cr3tWord {more}" if "S3cr3t" not in text else "")
    assert len(said) <= MOST_CHARS
    assert said.isprintable()
    assert "S3cr3tWord" not in said


def test_a_long_text_takes_no_time() -> None:
    for piece in ("a", "?", "=", "token", "Bearer ", "http://", "eyJ.", "hf_", "'"):
        redact(piece * 1_000_000)  # the whole suite's time-out is the measure: what backtracks takes minutes


@pytest.mark.parametrize(
    "content",
    [b"two\nS3cr3tWord", b"S3cr3tWord two", b"S3cr3tWord\r\nX: y", b"S3cr3tW\xc3\xb6rd", b"\0S3cr3tWord", b""],
)
def test_a_token_is_one_line_of_printable_ascii(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(CredentialsError, match=r"must hold one token|must be ASCII") as raised:
        token_of(str(file))
    assert "S3cr3t" not in str(raised.value)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [
        "[default]\naws_access_key_id = S3cr3tWord\n",
        "[default]\naws_access_key_id = S3cr3tWord\naws_secret_access_key = a\n b\n",
        "S3cr3tWord",
        "[other]\naws_access_key_id = S3cr3tWord\n",
    ],
)
def test_an_invalid_key_file_is_refused_without_quoting_it(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(CredentialsError) as raised:
        s3_keys(str(file))
    assert "S3cr3t" not in str(raised.value)
