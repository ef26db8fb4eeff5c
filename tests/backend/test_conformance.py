"""Outputs of random models under JSON Schemas: every one that ends by itself validates, by another implementation."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import numpy as np
import pytest
from backend.conformance import NAMED, Schema, random_schema
from byte_tokenizer import byte_tokenizer
from tokenizers import Tokenizer

from aegaeon_gateway.request.structured import StructuredFields, form_of
from aegaeon_proto.constraints import fault
from aegaeon_proto.engine.sampling import Constraint, SamplingParams
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.sampling import Sampled, SamplerState
from aegaeon_sidecar.sampling.grammars import Grammars, Vocabulary

EOS, BATCH, BLOCKS, LONGEST, LEAST = 2, 16, 16, 240, 500
PROMPT = [5, 17, 23]
SEEDS = 4  # outputs of each schema
RANDOM = 230


class Asked(NamedTuple):
    """A schema, and the constraint that a gateway makes of it."""

    schema: Schema
    constraint: Constraint


@dataclass
class Row:
    """One output as it grows. `blocks`: of its own."""

    schema: Schema
    sampler: SamplerState
    blocks: np.ndarray[Any, np.dtype[np.int32]]
    output: list[int]
    ended: bool = False


class Writer:
    """A tiny random model that writes outputs, sixteen at a time, each under a schema of its own."""

    def __init__(self, rig: Any, directory: Path) -> None:
        self._rig = rig(directory, kv_blocks=BATCH * BLOCKS)
        self._engine = self._rig.backend
        self.vocabulary = Vocabulary(directory, self._rig.layout.vocab_size)
        self.grammars = Grammars()
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    def write(self, asked: Sequence[Asked], seed: int) -> Iterator[tuple[Schema, str]]:
        """Each schema with its output, of those that ended before the limit."""
        for first in range(0, len(asked), BATCH):
            rows = [self._row(at, one, seed) for at, one in enumerate(asked[first : first + BATCH])]
            while open_ := [row for row in rows if not row.ended and len(row.output) < LONGEST]:
                self._step(open_)
            yield from ((row.schema, self.tokenizer.decode(row.output)) for row in rows if row.ended)

    def _row(self, at: int, asked: Asked, seed: int) -> Row:
        params = SamplingParams(temperature=0.8, seed=seed, stop_ids=(EOS,), constraint=asked.constraint)
        guide = self.grammars.guide(self.vocabulary, asked.constraint, lambda: None)
        blocks = np.arange(at * BLOCKS, (at + 1) * BLOCKS, dtype=np.int32)
        return Row(asked.schema, SamplerState(params, choice=at, guide=guide), blocks, [])

    def _step(self, rows: list[Row]) -> None:
        fresh = [row for row in rows if not row.output]
        for row in fresh:
            self._take(row, self._engine.step("model", [StepInput(PROMPT, 0, row.blocks, row.sampler)])[0])
        going = [row for row in rows if row not in fresh]
        parts = [
            StepInput(row.output[-1:], len(PROMPT) + len(row.output) - 1, row.blocks, row.sampler) for row in going
        ]
        for row, chosen in zip(going, self._engine.step("model", parts) if parts else [], strict=True):
            self._take(row, chosen)

    @staticmethod
    def _take(row: Row, chosen: object) -> None:
        assert isinstance(chosen, Sampled), (row.schema, chosen)
        row.sampler.accept(chosen.token)
        row.ended = chosen.token == EOS
        if not row.ended:
            row.output.append(chosen.token)


def wrong(schema: Schema, text: str) -> str:
    """Why this output does not validate, by a validator that asserts formats; empty when it does."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    found = next(jsonschema_rs.validator_for(schema, validate_formats=True).iter_errors(value), None)
    return "" if found is None else str(found)


def checked(writer: Writer, asked: Sequence[Asked], seeds: int) -> tuple[int, set[str]]:
    """How many outputs ended, of how many schemas; every one of them must validate."""
    ended, served = 0, set()
    for seed in range(seeds):
        for schema, text in writer.write(asked, seed):
            assert not (why := wrong(schema, text)), (schema, text, why)
            ended += 1
            served.add(json.dumps(schema))
    return ended, served


@pytest.fixture(scope="module")
def writer(rig: Any, tiny_models: dict[str, Path]) -> Writer:
    return Writer(rig, tiny_models["llama"])


def followed(schemas: Sequence[Schema]) -> list[Asked]:
    """Those that a gateway accepts, as it sends them."""
    forms = ((schema, form_of(StructuredFields(guided_json=schema))) for schema in schemas)
    return [
        Asked(schema, Constraint(form.kind, form.text, (EOS,)))
        for schema, form in forms
        if form is not None and not fault(form.kind, form.text, byte_tokenizer())
    ]


def test_every_named_schema_that_is_accepted_gives_outputs_that_validate(writer: Writer) -> None:
    asked = followed(list(NAMED.values()))
    assert len(asked) >= 0.9 * len(NAMED)
    _, served = checked(writer, asked, 2)
    assert len(served) >= 0.95 * len(asked)


@pytest.mark.slow
def test_five_hundred_outputs_of_random_schemas_validate(writer: Writer) -> None:
    chance = random.Random(1)
    ended, _ = checked(writer, followed([random_schema(chance) for _ in range(RANDOM)]), SEEDS)
    assert ended >= LEAST
