"""Fields of every endpoint of OpenAI's for sampling, the end of an output, and the place in the queue."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from aegaeon_proto import sampling

TokenId = Annotated[int, Meta(ge=0, lt=2**32)]
StopString = Annotated[str, Meta(min_length=1, max_length=512)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
TokenCount = Annotated[int, Meta(ge=1, lt=2**31)]
LikeliestCount = Annotated[int, Meta(ge=0, le=20)]


Temperature = Annotated[
    Annotated[float, Meta(ge=0, le=2)] | None, Meta(description="0 is greedy; smaller than 0.01 counts as 0.01")
]
TopP = Annotated[
    Annotated[float, Meta(ge=sampling.TOP_P.low, le=1)] | None, Meta(description="of the probability, 1 is off")
]
TopK = Annotated[Annotated[int, Meta(ge=-1, lt=2**31)] | None, Meta(description="-1 and 0 are off")]
Priority = Annotated[
    Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None,
    Meta(description="among your requests for the model: prompts of lower numbers begin first; 0 is the default"),
]
CacheSalt = Annotated[
    Annotated[str, Meta(min_length=1, max_length=1024)] | None,
    Meta(description="KV cache is shared only with those of your requests that have the same one"),
]


class SamplingFields(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Fields that every endpoint of OpenAI's takes. Ranges are OpenAI's; top_k, min_p and below are known extensions.

    None is what a client says that leaves a parameter out, or gives null.
    """

    temperature: Temperature = None
    top_p: TopP = None
    presence_penalty: Annotated[Penalty | None, Meta(description="of tokens of the output, once each")] = None
    frequency_penalty: Annotated[Penalty | None, Meta(description="of tokens of the output, each time")] = None
    logit_bias: Annotated[
        Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=sampling.MAX_LOGIT_BIAS)] | None,
        Meta(description="by token id"),
    ] = None
    seed: Annotated[int | None, Meta(description="the same one gives the same draws")] = None
    stop: Annotated[
        StopString | Annotated[list[StopString], Meta(max_length=16)] | None,
        Meta(description="texts that end a choice; not before `min_tokens`"),
    ] = None
    stream: Annotated[bool | None, Meta(description="server-sent events")] = None
    top_k: TopK = None
    min_p: Annotated[Share | None, Meta(description="of the likeliest token's probability, 0 is off")] = None
    repetition_penalty: Annotated[
        Annotated[float, Meta(ge=sampling.REPETITION_PENALTY.low, le=sampling.REPETITION_PENALTY.high)] | None,
        Meta(description="of tokens of prompt and output, 1 is off"),
    ] = None
    stop_token_ids: Annotated[
        Annotated[list[TokenId], Meta(max_length=128)] | None, Meta(description="tokens that end a choice, as EOS does")
    ] = None
    include_stop_str_in_output: Annotated[
        bool | None, Meta(description="the stop string, or the text of the token that ended it, is part of the output")
    ] = None
    min_tokens: Annotated[
        Annotated[int, Meta(ge=0, lt=2**31)] | None, Meta(description="no end by EOS, stop tokens or `stop` before")
    ] = None
    ignore_eos: Annotated[bool | None, Meta(description="EOS does not end a choice")] = None
    bad_words: Annotated[
        Annotated[list[Annotated[str, Meta(max_length=512)]], Meta(max_length=sampling.MAX_BAD_WORDS)] | None,
        Meta(description="never output, as the tokens that each text is, with and without a space before it"),
    ] = None
    allowed_token_ids: Annotated[
        Annotated[list[TokenId], Meta(min_length=1)] | None,
        Meta(description=f"no other tokens are output; {sampling.MAX_ALLOWED_IDS} at most"),
    ] = None
    skip_special_tokens: Annotated[bool | None, Meta(description="false: special tokens are part of the output")] = None
    thinking_token_budget: Annotated[
        Annotated[int, Meta(ge=-1, lt=2**31)] | None,
        Meta(description="tokens of reasoning, after which its end is output; -1 is off"),
    ] = None
    priority: Priority = None
    service_tier: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="`flex`: tier batch, `default`: at most standard; others: your tenant's, as without it"),
    ] = None
