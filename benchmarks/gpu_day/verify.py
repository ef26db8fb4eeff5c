"""Stage `verify`: every token of a sample of answers against Hugging Face transformers, on the same device.

transformers is fed the prompt and our tokens and says what it would have chosen at each position. In bfloat16 two
logits that nearly tie may change places by rounding alone. How far rounding moves a logit is measured: the largest
difference, at the same position, between transformers' own logits in the engine's dtype and in float32. A token whose
float32 logit is within twice of that of the largest is a tie, any other is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from benchmarks.gpu_day.answers import Answers, read_answers
from benchmarks.gpu_day.models import shape_of
from benchmarks.gpu_day.stage import begin, parser_of, status
from benchmarks.gpu_day.where import Where
from benchmarks.report import Row
from benchmarks.truth_stack import prompt_of
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from aegaeon_cli.demo.verify import TIE

SAMPLE = 6  # answers of each model


@dataclass(frozen=True, slots=True)
class Counts:
    """Of positions. `worst`: how far the worst token's logit is below the largest; `noise`: of rounding, at most."""

    identical: int = 0
    ties: int = 0
    different: int = 0
    worst: float = 0.0
    noise: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        sums = self.identical + other.identical, self.ties + other.ties, self.different + other.different
        return Counts(*sums, max(self.worst, other.worst), max(self.noise, other.noise))


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--of", choices=("pool", "roles"), required=True, help="the stage whose answers it looks at")
    arguments = parser.parse_args()
    where, figures = begin(f"verify of {arguments.of}", arguments)
    disable_progress_bar()
    if not where.replies(arguments.of).exists():
        print(f"{arguments.of} left no answers")
        return 1
    answers, counts = read_answers(where.replies(arguments.of)), Counts()
    for number, model in enumerate(answers.workload.names):
        counts += _of_model(where, where.models / model, list(_sample(answers, number)))
    figures.add(
        Row("positions compared", counts.identical + counts.ties + counts.different, "tokens"),
        Row("ties within rounding", counts.ties, "tokens"),
        Row("tokens that differ", counts.different, "tokens", 0, "<="),
        Row("the worst token's logit below the largest", counts.worst, "(logit)"),
        Row("rounding moves a logit by at most", counts.noise, "(logit)"),
    )
    return status(figures, where.small)


def _sample(answers: Answers, model: int) -> Iterator[tuple[list[int], list[int]]]:
    """Prompt and output of the model's longest answers."""
    mine = [index for index, arrival in enumerate(answers.workload.arrivals) if arrival.model == model]
    mine.sort(key=lambda index: -len(answers.replies[index].tokens))
    for index in mine[:SAMPLE]:
        if tokens := answers.replies[index].tokens:
            yield prompt_of(index, answers.workload.arrivals[index].input_tokens), tokens


def _of_model(where: Where, directory: Path, samples: Sequence[tuple[list[int], list[int]]]) -> Counts:
    """Of prompts with their outputs: in the engine's dtype first, then in float32, one at a time on the device."""
    dtype = getattr(torch, shape_of(where).fields["dtype"])
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    model = model.train(False).to(torch.device(where.device))
    own = [_logits(model, *sample) for sample in samples] if dtype is not torch.float32 else None
    model = model.float()
    counts = Counts()
    for number, (prompt, output) in enumerate(samples):
        logits = _logits(model, prompt, output)
        noise = torch.full((len(output),), TIE / 2) if own is None else (own[number] - logits).abs().amax(dim=1)
        counts += _compare(logits, output, noise)
    return counts


def _logits(model: PreTrainedModel, prompt: Sequence[int], output: Sequence[int]) -> Tensor:
    """[output, vocabulary] in float32, on the CPU."""
    ids = torch.tensor([[*prompt, *output[:-1]]], device=model.device)
    with torch.inference_mode():
        logits: Tensor = model(input_ids=ids, logits_to_keep=len(output), use_cache=False).logits[0]
    return logits.float().cpu()


def _compare(logits: Tensor, output: Sequence[int], noise: Tensor) -> Counts:
    """`logits` in float32; `noise` [output]: how far rounding moves a logit there."""
    gaps = logits.amax(dim=1) - logits.gather(1, torch.tensor(output).unsqueeze(1)).squeeze(1)
    different, identical = gaps > 2 * noise, gaps == 0
    ties = int((~different & ~identical).sum())
    return Counts(int(identical.sum()), ties, int(different.sum()), float(gaps.max()), float(noise.max()))


if __name__ == "__main__":
    sys.exit(main())
