"""families.json: a row for each architecture of vLLM's registry; and the table of the guide that is made of it.

`python -m backend_vllm.rows GUIDE` writes the table between the guide's marks; `make generate` runs it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backend_vllm.families import FAMILIES, QUANTISED
from backend_vllm.zoo import NEAR, ZOO

from aegaeon_sidecar.models.config import ARCHITECTURES

FILE = Path(__file__).with_name("families.json")
BEGIN, END = "<!-- families: made by `make generate` -->", "<!-- end of families -->"
# By outcome: what the refusal says; exact: shown by tests beside transformers; proof: admitted where the proof holds;
# media-class: as media, which its class says and its name does not.
OUTCOMES = {
    "exact": "",
    "proof": "",
    "media": "takes images or sound",
    "media-class": "takes images or sound",
    "encoder": r"attends in both directions|has an encoder",
    "drafts": "drafts tokens for another model",
    "state": "keeps a state per sequence",
    "latent": "has multi-head latent attention",
}
# Random programs of switches, swaps, hand-offs and cancels gave the tokens of each sequence run alone, in these dtypes.
SWITCHED = dict.fromkeys(("llama", "qwen3", "gemma2", "gptoss"), "float32, bfloat16")
SWITCHED |= dict.fromkeys(("mistral", "phi3", "gemma3", "mixtral", "qwen3moe"), "float32")
SWITCHED |= dict.fromkeys(QUANTISED, "bfloat16")


@dataclass(frozen=True, slots=True)
class Row:
    """`example`: a repository of this architecture, empty where none is known; `kv`: what its sequences keep;
    `families`: tiny models of it in the tests; `since`: the version that serves it first."""

    architecture: str
    example: str
    kv: str
    outcome: str
    families: tuple[str, ...] = ()
    since: str = ""


def read_rows() -> list[Row]:
    """Those of families.json."""
    rows = json.loads(FILE.read_text("utf-8"))
    return [Row(**{key: tuple(value) if key == "families" else value for key, value in row.items()}) for row in rows]


def table(rows: list[Row]) -> Iterator[str]:
    """Lines of markdown: a family each."""
    yield "| family | architecture | KV | image | backends | exact | switched | since |"
    yield "|---|---|---|---|---|---|---|---|"
    exact = [row for row in rows if row.outcome == "exact"]
    for row in sorted(exact, key=lambda row: row.families):
        for family in row.families:
            yield "| " + " | ".join(_cells(row, family)) + " |"


def _cells(row: Row, family: str) -> Iterator[str]:
    quantised = family in QUANTISED
    yield from (family, row.architecture, row.kv)
    yield "bake" if quantised or (FAMILIES | ZOO)[family][2] else "plan"
    yield "torch, vllm" if row.architecture in ARCHITECTURES and not quantised else "vllm"
    yield "as bfloat16" if quantised else f"{NEAR.get(family, 2e-5):.0e}".replace("e-0", "e-")
    yield from (SWITCHED.get(family, ""), row.since)


def main(guide: Path) -> None:
    """Put the table into the guide."""
    before, _, rest = guide.read_text("utf-8").partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"{guide}: the lines {BEGIN} and {END} are missing")
    guide.write_text("\n".join([before + BEGIN, *table(read_rows()), END + after]), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
