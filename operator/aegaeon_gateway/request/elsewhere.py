"""Fields that change an answer on other servers: each is honoured here, or refused with 400; none is dropped.

What the schemas have themselves is honoured. `HONOURED` are other names for it, `MEANINGFUL` is refused unless its
value is the one that asks for nothing. Fields of other servers that change no answer (where it is cached, how it is
logged) are in neither: they are dropped and said, as any unknown field is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aegaeon_gateway.request.parameters import Refused

SOURCES = {
    "vLLM": "0.32.0, vllm/entrypoints/{openai,pooling}/*/protocol.py",
    "SGLang": "0.5.18, python/sglang/srt/entrypoints/openai/protocol.py at 9b116dff",
    "Ollama": "openai/openai.go at 634c4166, docs/api.md, docs/modelfile.mdx",
    "TGI": "router/src/lib.rs at cdc005bc",
    "llama.cpp": "tools/server/README.md of June 2026",
}
"""where the names were read"""
_UNREAD = ""
"""names that clients send, of which no server's source was read"""


@dataclass(frozen=True, slots=True)
class Meaningful(Refused):
    """`server`: one whose answers it changes; empty: its source was not read. `example`: a value that does."""

    server: str = ""
    example: Any = None


def _of(server: str, reason: str, example: Any, *neutral: Any) -> Meaningful:
    return Meaningful(reason, neutral, server, example)


_SAMPLERS = "there is no such sampler"
_FORM = "use response_format or structured_outputs"
_IMAGES = "input and output are text"
_LOADED = "which weights answer is said by model"

HONOURED: dict[str, str] = {
    # of chats and completions: another server's name, and the name here
    "ebnf": "guided_grammar",
    "grammar": "guided_grammar",
    "json_schema": "guided_json",
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "regex": "guided_regex",
}
TEMPLATE_VARIABLES = ("enable_thinking",)
"""of chats: at the top they are what they are in `chat_template_kwargs`"""

MEANINGFUL: dict[str, Meaningful] = {
    "adapter_id": _of("TGI", _LOADED, "user/lora"),
    "custom_logit_processor": _of("SGLang", "a request's programs are not run", "gASV"),
    "custom_params": _of("SGLang", "a request's programs are not run", {"a": 1}, {}),
    "decoder_input_details": _of("TGI", "use prompt_logprobs", True, False),
    "do_sample": _of("TGI", "use temperature: 0", False, True),
    "dry_allowed_length": _of("llama.cpp", _SAMPLERS, 3, 2),
    "dry_base": _of("llama.cpp", _SAMPLERS, 2.0, 1.75),
    "dry_multiplier": _of("llama.cpp", _SAMPLERS, 0.8, 0, 0.0),
    "dry_penalty_last_n": _of("llama.cpp", _SAMPLERS, 64, 0, -1),
    "dry_sequence_breakers": _of("llama.cpp", _SAMPLERS, ["\n"], []),
    "dynatemp_exponent": _of("llama.cpp", _SAMPLERS, 2.0, 1, 1.0),
    "dynatemp_range": _of("llama.cpp", _SAMPLERS, 0.5, 0, 0.0),
    "adaptive_decay": _of("llama.cpp", _SAMPLERS, 0.5),
    "adaptive_target": _of("llama.cpp", _SAMPLERS, 0.5, -1, -1.0),
    "early_stopping": _of("vLLM", "there is no beam search", True, False),
    "extra_key": _of("SGLang", "what tenants share of the prefix cache is not a request's choice", "a"),
    "format": _of("Ollama", _FORM, "json", ""),
    "grammar_lazy": _of("llama.cpp", _FORM, True, False),
    "grammar_triggers": _of("llama.cpp", _FORM, [{"type": "word", "value": "a"}], []),
    "guideline": _of("TGI", "write it as a system message", "be brief", ""),
    "images": _of("Ollama", _IMAGES, ["aGk="], []),
    "input_embeds": _of(_UNREAD, _IMAGES, [[0.5]]),
    "input_extra": _of("llama.cpp", "no model here fills in the middle", [{"text": "a"}], []),
    "input_ids": _of(_UNREAD, "use prompt of /v1/completions", [1, 2]),
    "input_prefix": _of("llama.cpp", "no model here fills in the middle", "a", ""),
    "input_suffix": _of("llama.cpp", "no model here fills in the middle", "a", ""),
    "inputs": _of("TGI", "use messages or prompt", "a"),
    "logits_processors": _of(_UNREAD, "a request's programs are not run", ["a.b"], []),
    "lora": _of("llama.cpp", _LOADED, [{"id": 0, "scale": 0.5}], []),
    "lora_path": _of("SGLang", _LOADED, "user/lora"),
    "max_dynamic_patch": _of("SGLang", _IMAGES, 4),
    "min_dynamic_patch": _of("SGLang", _IMAGES, 1),
    "min_keep": _of("llama.cpp", _SAMPLERS, 5, 0, 1),
    "mirostat": _of("llama.cpp", _SAMPLERS, 2, 0),
    "mirostat_eta": _of("llama.cpp", _SAMPLERS, 0.2, 0.1),
    "mirostat_tau": _of("llama.cpp", _SAMPLERS, 3.0, 5, 5.0),
    "n_indent": _of("llama.cpp", "no such form of text", 4, 0),
    "n_keep": _of("llama.cpp", "a prompt is never shifted", 5, 0, -1),
    "n_probs": _of("llama.cpp", "use logprobs", 3, 0),
    "no_stop_trim": _of("SGLang", "use include_stop_str_in_output", True, False),
    "num_ctx": _of("Ollama", "a model's length is said by its manifest", 4096),
    "num_keep": _of("Ollama", "a prompt is never shifted", 5, 0, -1),
    "options": _of("Ollama", "send its fields beside messages", {"num_ctx": 4096}, {}),
    "parameters": _of("TGI", "send its fields beside messages", {"seed": 1}, {}),
    "parse_tool_calls": _of("llama.cpp", "calls are always read", False, True),
    "penalize_newline": _of("Ollama", _SAMPLERS, True, False),
    "penalty_prompt": _of("llama.cpp", _SAMPLERS, "a"),
    "post_sampling_probs": _of("llama.cpp", "logprobs are of the model's distribution", True, False),
    "raw": _of("Ollama", "use /v1/completions", True, False),
    "reasoning_budget": _of("llama.cpp", "use thinking_token_budget", 100, -1),
    "reasoning_format": _of("llama.cpp", "reasoning is always apart", "none", "auto", "deepseek"),
    "repeat_penalty": _of("llama.cpp", "it is of the last tokens alone; use repetition_penalty", 1.1, 1, 1.0),
    "repeat_last_n": _of("llama.cpp", "repetition_penalty is of the whole text", 16, -1),
    "response_fields": _of("llama.cpp", "answers have all their fields", ["content"], []),
    "return_full_text": _of("TGI", "use echo", True, False),
    "return_hidden_states": _of("SGLang", "they are not returned", True, False),
    "return_prompt_token_ids": _of(_UNREAD, "use return_token_ids", True, False),
    "return_routed_experts": _of(_UNREAD, "experts are not returned", True, False),
    "return_tokens": _of("llama.cpp", "use return_token_ids", True, False),
    "samplers": _of("llama.cpp", "their order is fixed", ["top_k"], []),
    "separate_reasoning": _of("SGLang", "reasoning is always apart; use include_reasoning", False, True),
    "session_params": _of("SGLang", "conversations are sent whole", {"id": "a"}, {}),
    "stop_regex": _of("SGLang", "use stop", "a+", ""),
    "stream_reasoning": _of("SGLang", "reasoning is streamed", False, True),
    "structural_tag": _of(_UNREAD, _FORM, "{}"),
    "suffix": _of("TGI", "no model here fills in the middle", "a", ""),
    "t_max_predict_ms": _of("llama.cpp", "use max_tokens", 100, 0),
    "template": _of("Ollama", "a template is a program; it comes with the model", "{{ .Prompt }}", ""),
    "tfs_z": _of("Ollama", _SAMPLERS, 0.5, 1, 1.0),
    "think": _of("Ollama", "use reasoning_effort", True),
    "thinking_forced_open": _of("llama.cpp", "the template says how an answer begins", True, False),
    "tool_prompt": _of("TGI", "write it as a system message", "Use the tools.", ""),
    "top_n_sigma": _of("llama.cpp", _SAMPLERS, 1.0, -1, -1.0),
    "top_n_tokens": _of("TGI", "use top_logprobs", 3, 0),
    "truncate": _of("TGI", "use truncate_prompt_tokens", 100),
    "typical_p": _of("llama.cpp", _SAMPLERS, 0.5, 1, 1.0),
    "typ_p": _of("llama.cpp", _SAMPLERS, 0.5, 1, 1.0),
    "use_audio_in_video": _of("SGLang", _IMAGES, True, False),
    "watermark": _of("TGI", "output is not watermarked", True, False),
    "xtc_probability": _of("llama.cpp", _SAMPLERS, 0.5, 0, 0.0),
    "xtc_threshold": _of("llama.cpp", _SAMPLERS, 0.2, 0.1),
    "guided_whitespace_pattern": _of(_UNREAD, "white space is bounded", "[ ]?"),
    "guided_patience": _of(_UNREAD, _FORM, 2),
}
POOLED: dict[str, Meaningful] = {
    # of embeddings, reranking and scores
    "dtype": _of(_UNREAD, "numbers are float32", "float16", "float32"),
    "embed_dtype": _of("vLLM", "numbers are float32", "float16", "float32"),
    "input_type": _of("vLLM", "write what the model expects before the text", "query"),
    "instruction": _of("vLLM", "write it before the text", "find"),
    "instruct": _of(_UNREAD, "write it before the text", "find"),
    "pooling": _of(_UNREAD, "it is said by the model's files", "mean"),
    "prompt_name": _of(_UNREAD, "write the prompt before the text", "query"),
    "task": _of("vLLM", "write what the model expects before the text", "retrieval.query"),
}
KNOWN_TO_BE_SENT = (
    # what clients are known to send that has no effect: labels of the counter
    *("cache_prompt", "client_metadata", "betas", "id_slot", "include", "keep_alive", "provider", "rid", "route"),
    *("stream_options", "timings_per_token", "transforms", "usage", "tools", "tools.format", "tools.cache_control"),
    *("tools.defer_loading", "tools.input_examples", "tools.output_schema", "tools.allowed_callers"),
    *("text.verbosity", "reasoning.summary", "reasoning.generate_summary", "reasoning_effort", "reasoning.effort"),
    *("output_config.effort", "thinking.budget_tokens", "stream_options.include_obfuscation", "messages.cache_control"),
    *("messages.reasoning_details", "messages.reasoning_text", "messages.id", "messages.timestamp", "messages.prefix"),
    *("messages.content", "messages.content.content", "messages.content.citations", "messages.tool_calls"),
    *("messages.tool_calls.extra_content", "messages.output_config", "input", "input.content", "input.output"),
    *("input.encrypted_content", "input.summary", "system.citations"),
)
