"""All attacks by name, with the item of the threat model that each belongs to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from attacks import on_connections, on_models, on_ports, on_quotas, on_requests, on_schemas
from attacks.stranger import Stranger

from aegaeon_proto.v1.model_pb2 import ModelSource

Run = Callable[[Stranger], Awaitable[object]]
Write = Callable[[Path, Path, int], dict[str, ModelSource]]


@dataclass(frozen=True, slots=True)
class Attack:
    """`models` writes the files of a hostile ModelPool: (a good model, folder to write into, port of its server).

    `computes`: it asks engines for work as any client may, within its quota. Their time is shared by deadlines, so a
    stream that is ahead of its own may stall for a while; what must hold is that no token is later than it.
    `occupies`: its requests keep a worker process of the gateway busy up to their time limit.
    """

    name: str
    run: Run
    models: Write | None = None
    computes: bool = False
    occupies: bool = False


_ALL = (
    Attack("ordinary-neighbour", on_requests.ordinary, computes=True),
    Attack("nan-logits", on_requests.nan_logits),
    # What of it is within the bounds is answered, as an ordinary neighbour's chats are.
    Attack("sampling-extremes", on_requests.sampling_extremes, computes=True),
    Attack("logit-bias-entries", on_requests.logit_bias_entries),
    Attack("choices", on_requests.choices, computes=True),
    Attack("stop-strings", on_requests.stop_strings, computes=True),
    Attack("cancel-waves", on_requests.cancel_waves, computes=True),
    Attack("wrong-items", on_requests.wrong_items),
    Attack("gzip-bomb", on_requests.gzip_bomb),
    Attack("long-prompt", on_requests.long_prompt),
    Attack("one-long-word", on_requests.one_long_word),
    Attack("many-messages", on_requests.many_messages),
    Attack("many-parts", on_requests.many_parts),
    Attack("many-token-ids", on_requests.many_token_ids),
    Attack("deep-nesting", on_requests.deep_nesting),
    Attack("odd-encodings", on_requests.odd_encodings),
    Attack("odd-json", on_requests.odd_json),
    Attack("schema-bombs", on_schemas.schema_bombs, computes=True),
    Attack("different-schemas", on_schemas.different_schemas, computes=True),
    Attack("token-bursts", on_quotas.token_bursts, computes=True),
    Attack("request-bursts", on_quotas.request_bursts, computes=True),
    Attack("prompt-guesses", on_quotas.prompt_guesses, computes=True),
    Attack("slow-headers", on_connections.slow_headers),
    Attack("slow-bodies", on_connections.slow_bodies),
    Attack("slow-readers", on_connections.slow_readers, computes=True),
    Attack("header-floods", on_connections.header_floods),
    Attack("bad-chunks", on_connections.bad_chunks),
    Attack("connection-flood", on_connections.connection_flood),
    Attack("half-close", on_connections.half_close),
    Attack("pipelining", on_connections.pipelining),
    Attack("pages", on_connections.pages),
    Attack("metrics-ports", on_connections.metrics_ports),
    Attack("template-gigabyte", on_models.ask_hostile, on_models.big_template_models, occupies=True),
    Attack("template-loops", on_models.ask_hostile, on_models.looping_template_models, occupies=True),
    Attack("tokenizer-backtracks", on_models.ask_hostile, on_models.backtracking_tokenizer_models, occupies=True),
    Attack("tokenizer-huge", on_models.ask_hostile, on_models.big_tokenizer_models, occupies=True),
    Attack("odd-text-files", on_models.ask_hostile, on_models.odd_texts_models),
    Attack("bad-weights", on_models.ask_hostile, on_models.bad_weights_models),
    Attack("changing-files", on_models.change_files, on_models.changing_models),
    Attack("bad-addresses", on_models.ask_hostile, on_models.bad_address_models),
    Attack("dripping-source", on_models.play_server, on_models.dripping_models),
    Attack("endless-source", on_models.play_server, on_models.endless_models),
    Attack("redirecting-source", on_models.play_server, on_models.redirecting_models),
    Attack("untrusted-on-grpc", on_ports.untrusted_on_grpc),
    Attack("admin-by-anybody", on_ports.admin_without_certificate),
    Attack("picker-resets", on_ports.picker_resets),
    Attack("picker-zero-window", on_ports.picker_zero_window),
    Attack("picker-pings", on_ports.picker_pings),
    Attack("picker-settings", on_ports.picker_settings),
    Attack("picker-garbage", on_ports.picker_garbage),
    Attack("picker-endless-headers", on_ports.picker_endless_headers),
)
ATTACKS = {attack.name: attack for attack in _ALL}
