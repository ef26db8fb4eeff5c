"""Hashes of prompts' beginnings, by which the core knows where they are cached (core.prefix), for any gateway.

Prompts stay out of the core and of its event log: hashes are keyed by this process. They depend on all that names of KV
blocks depend on in an engine, the tenant's salt among them, so what a tenant sends is never looked for in the
prompts of others.
"""

from __future__ import annotations

from hashlib import blake2b
from os import urandom

import numpy as np

from aegaeon_proto.v1 import gateway_pb2
from aegaeon_scheduler.core.prefix import step_tokens

_HASH_BYTES = 7  # an integer that compiled code needs no allocation for


class PrefixHashes:
    """`key`: 64 bytes at most; by default this process' own."""

    def __init__(self, key: bytes = b"") -> None:
        self._key = key or urandom(32)

    def of(self, submit: gateway_pb2.Submit) -> tuple[int, ...]:
        """The chain of a prompt: hashes of its first `step_tokens`, twice as many, ...; empty where none is reused."""
        if submit.HasField("pooling") or submit.sampling.HasField("prompt_logprobs"):
            return ()
        step, count = step_tokens(len(submit.prompt)), len(submit.prompt)
        if count < step:
            return ()
        array = np.array(submit.prompt, np.uint32)  # protobuf copies its memory; a list has an object for each token
        tokens, width = array.data.cast("B"), array.itemsize
        name = f"{len(submit.model)} {submit.model} {submit.identity} {submit.adapter_identity}".encode()
        digest = blake2b(name, key=self._key, digest_size=_HASH_BYTES)
        public, salted, chain = min(submit.public_tokens, count), not submit.salt, []
        at = 0
        for end in range(step, count + 1, step):
            if not salted and end > public:
                digest.update(tokens[at * width : public * width])
                digest.update(submit.salt)
                at, salted = public, True
            digest.update(tokens[at * width : end * width])
            chain.append(int.from_bytes(digest.digest(), "big"))
            at = end
        return tuple(chain)
