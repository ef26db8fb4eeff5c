"""The endpoints that models answer, a row each: paths, ids, and what renders an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aegaeon_gateway.answer.chat import ChatRenderer
from aegaeon_gateway.answer.completions import CompletionRenderer
from aegaeon_gateway.answer.messages import MessagesRenderer
from aegaeon_gateway.answer.pooled import Vector, embeddings, ranking, scores
from aegaeon_gateway.answer.render import Renderer
from aegaeon_gateway.answer.responses import ResponsesRenderer
from aegaeon_gateway.generation.request import Request
from aegaeon_gateway.request.pooled import BODIES, PooledName
from aegaeon_gateway.request.schema import MAX_CHOICES
from aegaeon_gateway.workers.wire import EndpointName, Pooled

RenderVectors = Callable[[Request, Pooled, Sequence[Vector]], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint. A generated answer has a `renderer`, one of vectors `vectors`; without both a worker answers alone.

    `id_prefix`: of the ids of its answers. `param`: the parameter that has the prompts, `prompts` of them at most.
    """

    name: EndpointName
    paths: tuple[str, ...]
    param: str
    prompts: int = 1
    id_prefix: str = ""
    renderer: Callable[[Request], Renderer] | None = None
    vectors: RenderVectors | None = None

    @property
    def answered_by_worker(self) -> bool:
        """No engine computes its answers."""
        return self.renderer is None and self.vectors is None


def _of_vectors(name: PooledName, paths: tuple[str, ...], id_prefix: str, vectors: RenderVectors) -> Endpoint:
    return Endpoint(name, paths, BODIES[name].param, BODIES[name].prompts, id_prefix, vectors=vectors)


# fmt: off
ENDPOINTS: dict[EndpointName, Endpoint] = {
    endpoint.name: endpoint
    for endpoint in (
        Endpoint("chat", ("/v1/chat/completions",), "messages", 1, "chatcmpl-", ChatRenderer),
        Endpoint("completions", ("/v1/completions",), "prompt", MAX_CHOICES, "cmpl-", CompletionRenderer),
        Endpoint("messages", ("/v1/messages",), "messages", 1, "msg_", MessagesRenderer),
        Endpoint("responses", ("/v1/responses",), "input", 1, "resp_", ResponsesRenderer),
        _of_vectors("embeddings", ("/v1/embeddings",), "embd-", embeddings),
        _of_vectors("rerank", ("/rerank", "/v1/rerank"), "rerank-", ranking),
        _of_vectors("score", ("/score", "/v1/score"), "score-", scores),
        Endpoint("count_tokens", ("/v1/messages/count_tokens",), "messages"),
        Endpoint("tokenize", ("/tokenize",), "prompt"),
        Endpoint("detokenize", ("/detokenize",), "tokens"),
    )
}
# fmt: on
