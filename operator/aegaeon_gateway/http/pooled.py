"""The endpoints of models that generate no text: /v1/embeddings, /rerank and /score."""

from __future__ import annotations

from aiohttp import web

from aegaeon_gateway.answer.pooled import Pooling, Vector, embeddings, ranking, scores
from aegaeon_gateway.errors import ApiError, ModelChangedError
from aegaeon_gateway.generation.request import Request
from aegaeon_gateway.http.caller import Caller
from aegaeon_gateway.http.gateway import Gateway
from aegaeon_gateway.http.ignored import tell_ignored
from aegaeon_gateway.http.intake import TOKEN_BYTES, Holding
from aegaeon_gateway.http.preparation import Preparation, Received
from aegaeon_gateway.metrics import ModelMetrics
from aegaeon_proto.v1.gateway_pb2 import ModelStatus

_NUMBER_BYTES = 32  # of a number of a result, and as it is written


class Pooler:
    """From a request that was received to its answer."""

    def __init__(self, gateway: Gateway, preparation: Preparation) -> None:
        self._gateway = gateway
        self._preparation = preparation

    async def serve(
        self, caller: Caller, received: Received, model: ModelStatus, holding: Holding
    ) -> web.StreamResponse:
        """By the model as it is. Raises ApiError, which may be of no more than that the name stands for another one."""
        record = caller.record
        with record.part("prepare"):
            request = await self._preparation.request(received, model)
        tell_ignored(record, request.ignored, self._gateway.metrics)
        record.asked(request)
        holding.hold(request.prompt_tokens * TOKEN_BYTES)
        metrics = self._gateway.metrics.of(request.model)
        outcome = "cancelled"
        try:
            with metrics.open_streams.track_inprogress():
                vectors = await self._metered(caller, request, metrics)
            holding.hold(sum(vector.size for vector in vectors) * _NUMBER_BYTES)
            body = await _rendered(received, request, vectors)
            outcome = "ok"
        except ApiError as error:
            outcome = error.outcome
            raise
        finally:
            metrics.ended(outcome)
            record.outcome = outcome
        return web.Response(body=body, content_type="application/json")

    async def _metered(self, caller: Caller, request: Request, metrics: ModelMetrics) -> list[Vector]:
        """Within the quotas; what was computed is billed however it ended."""
        tenant, model = caller.tenant, request.model
        quota = self._gateway.tenants.current().quota_of(model)
        limits, headers = self._gateway.limits, caller.record.headers
        charge = await limits.admit(tenant, model, quota, request.prompt_tokens, 0, headers)
        pooling = Pooling(request, self._gateway.link, metrics)
        try:
            async with pooling:
                return await pooling.results()
        except ModelChangedError:  # it is asked of the other model in its place
            await charge.unmake()
            raise
        finally:
            charge.close()
            caller.record.answered(pooling)
            metrics.used(tenant.name, pooling.computed_tokens, 0)


async def _rendered(received: Received, request: Request, vectors: list[Vector]) -> bytes:
    pooled = request.options.pooled
    assert pooled is not None, "a worker of these endpoints says how"
    match received.endpoint:
        case "embeddings":
            return await embeddings(request, pooled, vectors)
        case "rerank":
            return ranking(request, pooled, vectors)
        case _:
            return scores(request, pooled, vectors)
