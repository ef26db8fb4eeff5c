"""The messages between a gateway, its fork server and its workers, over unix sockets.

A message is eight bytes (two lengths), a msgpack head with a type, and a tail of raw bytes: request bodies and token
ids are never copied into objects on the way. Nothing is pickled: a worker that was taken over can send bytes alone.
"""

from __future__ import annotations

import socket
import struct
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from aegaeon_gateway.errors import WireError
from aegaeon_gateway.request.pooled import PooledName

HEADER = struct.Struct("<II")
LONGEST_BYTES = 256 << 20
"""of a head or a tail; a peer that sends more is not ours"""


# fmt: off
EndpointName = Literal[
    "chat", "completions", "messages", "count_tokens", "responses", "tokenize", "detokenize", PooledName,
]
# fmt: on


class Limit(Struct, frozen=True):
    """Limits of a piece of work: seconds of CPU time, and bytes over what the process has."""

    cpu_s: float
    memory_bytes: int


# ---- gateway -> fork server ------------------------------------------------------------------------------------------


class Spawn(Struct, frozen=True, tag=True):
    """Fork a worker that serves the socket sent along. `once`: it ends after one job. `low`: at the lowest priority."""

    limit: Limit
    once: bool
    low: bool


class Load(Struct, frozen=True, tag=True):
    """Load the text files of a folder under a key; answered by Loaded or Failed. `grammars`: also what compiles
    grammars for its tokenizer."""

    key: bytes
    directory: str
    limit: Limit
    grammars: bool = False


class Drop(Struct, frozen=True, tag=True):
    """Forget a key; `grammars`: what compiles grammars for it alone."""

    key: bytes
    grammars: bool = False


Order: TypeAlias = Spawn | Load | Drop


# ---- fork server -> gateway ------------------------------------------------------------------------------------------


class Loaded(Struct, frozen=True, tag=True):
    """The part of a model's text that the gateway needs on its loop. The tail holds the tokens' strings in UTF-8 by id,
    one after another.

    `ends`: uint32 [ids + 1], where each string ends in the tail, from 0 on; two equal ones: no such token. `special`
    and `added` are ids, `decoder` is JSON (null: none), `max_positions` tokens. `tokenizer`: a hash of what the
    tokenizer is made of; `resident_bytes`: what it takes.
    """

    key: bytes
    ends: bytes
    special: list[int]
    added: list[int]
    decoder: str
    max_positions: int
    tokenizer: bytes = b""
    resident_bytes: int = 0


class Failed(Struct, frozen=True, tag=True):
    """The files cannot be used."""

    key: bytes
    reason: str


# ---- gateway -> worker -----------------------------------------------------------------------------------------------


class Peek(Struct, frozen=True, tag=True):
    """Which model, and which response, does the body (the tail) name?"""


class Job(Struct, frozen=True, tag=True):
    """Make a request of the body (the tail). `length`: tokens of prompt and output that are served, 0: not known.

    Of the model's manifest: `calls`, `reasoning`, names of dialects, empty: what its chat template shows; `task`, what
    it is for, empty: what its files show; `matryoshka`: its embeddings may be cut. `public`: system prompts that are
    no secret. `history`: so many bytes at the beginning of the tail are not of the body, but the conversation that it
    goes on with. `share`: whose it is, for engines, which share the compiling of grammars.
    `strict`: what has no effect is refused.
    """

    key: bytes
    endpoint: EndpointName
    model: str
    length: int
    calls: str = ""
    reasoning: str = ""
    task: str = ""
    matryoshka: bool = False
    history: int = 0
    public: tuple[str, ...] = ()
    share: bytes = b""
    strict: bool = False


# ---- worker -> gateway -----------------------------------------------------------------------------------------------


class Ready(Struct, frozen=True, tag=True):
    """A worker's first message."""

    pid: int


class Peeked(Struct, frozen=True, tag=True):
    """The model that the body names, and the response that it goes on with, or ""."""

    model: str
    previous: str = ""


class Pooled(Struct, frozen=True):
    """How what a model makes of the prompts becomes an answer; `logits_of` is for engines.

    `normalize`: embeddings get length 1; `dimensions`: only the first so many, 0: all; `base64`: they are written so.
    `sigmoid`: of a score, or of the difference of the first logit from the second where there are two.
    `pairs`: numbers of prompts whose embeddings are compared, by their cosine; `top_n`: scores that come back, 0: all.
    """

    logits_of: tuple[int, ...] = ()
    normalize: bool = False
    dimensions: int = 0
    base64: bool = False
    sigmoid: bool = False
    pairs: tuple[tuple[int, int], ...] = ()
    top_n: int = 0


class ToolName(Struct, frozen=True):
    """How a request names a tool that its model knows by another name, or calls with one text (`custom`)."""

    name: str
    namespace: str = ""
    custom: bool = False


class Options(Struct, frozen=True):
    """The part of a request that the gateway itself has to know; fields are those of request/schema.py.

    `silent`: no output was asked for, and that one token which an engine makes all the same is not shown;
    `prompt_logprobs`: engines send them; `prompt_logprob_count`: so many are shown of each, None without the parameter;
    `calls`, `reasoning`: names of dialects by which the text is read; `tools`: names of those that may be called,
    `barred_tools`: of others that the request has; `tool_names`: of those that the request names otherwise;
    `pooled`: no text is wanted; `cache_salt`: KV cache is shared only with requests of the same one.
    """

    n: int = 1
    stops: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    echo: bool = False
    silent: bool = False
    logprob_count: int | None = None
    prompt_logprobs: bool = False
    prompt_logprob_count: int | None = None
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    calls: str = ""
    reasoning: str = ""
    inside_reasoning: bool = False
    tools: tuple[str, ...] = ()
    barred_tools: tuple[str, ...] = ()
    tool_names: dict[str, ToolName] = {}
    parallel_calls: bool = True
    show_reasoning: bool = True
    priority: int = 0
    service_tier: str = ""
    cache_salt: str = ""
    pooled: Pooled | None = None


class Done(Struct, frozen=True, tag=True):
    """A request that may be submitted. The tail holds all prompts' token ids as `prompt.pack` gives them.

    `tokens` and `packed` say how many ids, and how many bytes of the tail, each prompt has, `public` how many of its
    first ids are those of a public system prompt; `sampling` and
    `limits` (one for each prompt) are protobuf messages; `prompts` are texts that the answer repeats; `echoed` and
    `conversation` of a response are JSON: what it repeats of its request, and all items before its output, where it is
    to be kept; `ignored`: what of the request has no effect.
    """

    options: Options
    sampling: bytes
    limits: list[bytes]
    tokens: list[int]
    packed: list[int]
    prompts: list[str]
    public: list[int] = []
    echoed: bytes = b""
    conversation: bytes = b""
    ignored: tuple[str, ...] = ()


class Answered(Struct, frozen=True, tag=True):
    """The tail is the body of the answer."""

    ignored: tuple[str, ...] = ()


class Refused(Struct, frozen=True, tag=True):
    """400: the request is wrong."""

    message: str
    param: str | None
    code: str | None


class Exceeded(Struct, frozen=True, tag=True):
    """The job took more than its limit. `stage`: checking, rendering, tokenizing or compiling."""

    stage: str


class Missing(Struct, frozen=True, tag=True):
    """The model of the job is not loaded here."""


class NeedsGrammars(Struct, frozen=True, tag=True):
    """The job has a grammar, and this worker cannot compile any for the model: Load it with grammars and try again."""


Reply: TypeAlias = Ready | Peeked | Done | Answered | Refused | Exceeded | Missing | NeedsGrammars
Answer: TypeAlias = Loaded | Failed
Message: TypeAlias = Order | Answer | Peek | Job | Reply

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Message)


def frame(message: Message, tail: bytes | bytearray = b"") -> bytes:
    """Header and head of a message whose tail follows."""
    head = _encode(message)
    return HEADER.pack(len(head), len(tail)) + head


def lengths(header: bytes) -> tuple[int, int]:
    """Lengths of head and tail. Raises WireError."""
    head, tail = HEADER.unpack(header)
    if max(head, tail) > LONGEST_BYTES:
        raise WireError(f"a message of {head} + {tail} bytes")
    return head, tail


def decode(head: bytes) -> Message:
    """Raises WireError."""
    try:
        message: Message = _decoder.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(str(error)) from error
    return message


def send(sock: socket.socket, message: Message, tail: bytes = b"") -> None:
    """Blocking, for the children."""
    sock.sendall(frame(message, tail))
    if tail:
        sock.sendall(tail)


def receive(sock: socket.socket) -> tuple[Message, bytes, list[int]] | None:
    """Blocking: a message, its tail, and file descriptors that came along. None at the end. Raises WireError."""
    header, descriptors, _, _ = socket.recv_fds(sock, HEADER.size, 1)
    if not header:
        return None
    header += _exactly(sock, HEADER.size - len(header))
    head, tail = lengths(header)
    return decode(_exactly(sock, head)), _exactly(sock, tail), descriptors


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if not got:
            raise WireError("the other side ended in the middle of a message")
        view = view[got:]
    return bytes(data)
