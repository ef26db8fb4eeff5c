"""Compiles what an output must be, with the model's own tokenizer, in a process that may take so much and no more.

A compiler of untrusted grammars has holes that no list of refused keywords closes, so each is compiled in a fork of the
worker: what its limits end is that fork, and the worker says so and goes on. Engines receive what was proved here.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from llguidance import LLTokenizer

from aegaeon_proto import process_limits as limits
from aegaeon_proto.constraints import PROOF, fault, proof_of
from aegaeon_proto.engine.sampling import ConstraintKind

_MOST_BYTES = 4096  # of a reason


class NeedsGrammarsError(Exception):
    """This worker has no compiler of grammars for the model."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """The compiler of grammars for one model's tokenizer. `proof`: goes to engines with a grammar that compiles;
    `useless`: why none does."""

    tokenizer: LLTokenizer | None
    proof: str = ""
    useless: str = ""

    def fault(self, kind: ConstraintKind, text: str) -> str:
        """Why this cannot be compiled, or costs too much; empty when it can be."""
        if self.tokenizer is None:
            return self.useless
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            _try(writer, kind, text, self.tokenizer)
        os.close(writer)
        with open(reader, "rb") as answer:
            why = answer.read().decode(errors="replace")
        _, status = os.waitpid(pid, 0)
        return f"compiling it takes more than {PROOF}; send a simpler schema or grammar" if status else why


def compiler_of(directory: Path, size: int, ends: tuple[int, ...]) -> Compiler:
    """Takes a second and 100 MB for 128,000 tokens. A tokenizer that grammars cannot have fails those alone."""
    try:
        data = (directory / "tokenizer.json").read_bytes()
        tokenizer = LLTokenizer(data.decode(), n_vocab=max(size, *(end + 1 for end in ends)), eos_token=list(ends))
    except (OSError, ValueError, OverflowError) as error:
        return Compiler(
            None, useless=f"constraints cannot be used with this model's tokenizer.json: {str(error)[:500]}"
        )
    return Compiler(tokenizer, proof_of(hashlib.sha256(data).hexdigest()))


def _try(answer: int, kind: ConstraintKind, text: str, tokenizer: LLTokenizer) -> None:
    """Never returns. A status that is not 0: over a limit, or what the library makes of an untrusted grammar."""
    status = 1
    try:
        limits.die_with_parent()
        limits.limit_address_space(PROOF.memory_bytes)
        with limits.cpu_time(PROOF.cpu_s):
            why = fault(kind, text, tokenizer)
        os.write(answer, why.encode()[:_MOST_BYTES])
        status = 0
    finally:
        os._exit(status)
