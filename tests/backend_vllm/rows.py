"""families.json: a row for each architecture of vLLM's registry; and the tables of the guide that are made of it.

`python -m backend_vllm.rows GUIDE` writes the tables between the guide's marks; `make generate` runs it.
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
ALL_BEGIN, ALL_END = "<!-- architectures: made by `make generate` -->", "<!-- end of architectures -->"
# By outcome: what the refusal says; empty where it is served, or where its row says it. media-class: as media, which
# its class says and its name does not.
OUTCOMES = {
    "exact": "",
    "same": "",
    "proof": "",
    "own-code": "asks for code of the model's own",
    "refused": "",
    "media": "takes images or sound",
    "media-class": "takes images or sound",
    "encoder": r"attends in both directions|has an encoder",
    "drafts": "drafts tokens for another model",
    "state": "keeps a state per sequence",
    "latent": "has multi-head latent attention",
}
_SERVED = {
    "exact": "served, exact beside transformers: the table above",
    "same": "served: weights of a family above under another name, or its embedder; admitted by proof",
    "proof": "served: a tiny model is admitted by proof; no reference to compare it with is installed",
    "refused": "refused, each by its sentence, see below",
}
_BEFORE = {"media", "encoder", "drafts"}  # decided by the name
# Random programs of switches, swaps, hand-offs and cancels gave the tokens of each sequence run alone, in these dtypes.
SWITCHED = dict.fromkeys(("llama", "qwen3", "gemma2", "gptoss"), "float32, bfloat16")
SWITCHED |= dict.fromkeys(("mistral", "phi3", "gemma3", "mixtral", "qwen3moe"), "float32")
SWITCHED |= dict.fromkeys(QUANTISED, "bfloat16")


@dataclass(frozen=True, slots=True)
class Row:
    """`example`: a repository of this architecture, empty where none is known; `kv`: what its sequences keep;
    `families`: tiny models of it in the tests; `since`: the version that serves it first; `model_type`: of a model with
    code of its own, which its published config.json names; `says`: of one that is refused, what the refusal says."""

    architecture: str
    example: str
    kv: str
    outcome: str
    families: tuple[str, ...] = ()
    since: str = ""
    model_type: str = ""
    says: str = ""


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


def all_table(rows: list[Row]) -> Iterator[str]:
    """Lines of markdown: what becomes of every architecture."""
    yield "| what becomes of it | count | architectures |"
    yield "|---|---|---|"
    for outcome, words in OUTCOMES.items():
        names = sorted(row.architecture for row in rows if row.outcome == outcome)
        what = _SERVED.get(outcome) or f"refused{', by its name' * (outcome in _BEFORE)}: {words.replace('|', ' or ')}"
        yield f"| {what} | {len(names)} | {', '.join(names)} |"
    yield from ("", "| architecture | |", "|---|---|")
    for row in sorted((row for row in rows if row.says), key=lambda row: (row.outcome, row.architecture)):
        yield f"| {row.architecture} | {row.outcome}: {row.says.replace('|', ' or ')} |"


def written(text: str, rows: list[Row]) -> str:
    """The guide's text with both tables as they are made of these rows."""
    for begin, lines, end in ((BEGIN, table(rows), END), (ALL_BEGIN, all_table(rows), ALL_END)):
        before, _, rest = text.partition(begin)
        _, mark, after = rest.partition(end)
        if not mark:
            raise SystemExit(f"the lines {begin} and {end} are missing")
        text = "\n".join([before + begin, *lines, end + after])
    return text


def main(guide: Path) -> None:
    """Put the tables into the guide."""
    guide.write_text(written(guide.read_text("utf-8"), read_rows()), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
