"""lm-eval: loglikelihoods and generation over completions, with prompts as token ids."""

import sys

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

URL, MODEL = sys.argv[1:]
FOLDER = sys.stdin.read().strip()
lm = LocalCompletionsAPI(
    model=MODEL, base_url=f"{URL}/completions", tokenizer_backend="huggingface", tokenizer=FOLDER, max_length=512,
    num_concurrent=1, max_retries=1, tokenized_requests=True,
)  # fmt: skip
LEARNT = "<|begin|><|user|>Say hello.<|end|><|assistant|>"


def asked(kind: str, arguments: tuple[object, ...]) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


right, wrong = lm.loglikelihood(
    [asked("loglikelihood", (LEARNT, "Hello to you.")), asked("loglikelihood", (LEARNT, "What in Paris?"))]
)
assert (right[1], wrong[1]) == (True, False), (right, wrong)
assert right[0] > -1 > wrong[0], (right, wrong)
[text] = lm.generate_until([asked("generate_until", (LEARNT, {"until": [" you"], "max_gen_toks": 16}))])
assert text == "Hello to", text
