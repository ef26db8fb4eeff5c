"""Reports of gateways about models' tokenizers and chat templates, which only they load. Operators read it."""

from __future__ import annotations

from collections.abc import Collection

from aegaeon_proto.v1 import gateway_pb2, model_pb2
from aegaeon_scheduler.core.domain import GatewayId


class TokenizerReports:
    """Owner of the reasons why a gateway cannot use a model's text, by gateway and model."""

    def __init__(self) -> None:
        self._reasons: dict[GatewayId, dict[str, str]] = {}

    def tell(self, gateway: GatewayId, status: gateway_pb2.TextStatus) -> None:
        """A gateway's newest word on a model."""
        reasons = self._reasons.setdefault(gateway, {})
        reasons.pop(status.model, None)
        if status.reason:
            reasons[status.model] = status.reason

    def forget(self, gateway: GatewayId) -> None:
        """The gateway is gone, or attaches again and sends all its reports again."""
        self._reasons.pop(gateway, None)

    def add_to(self, catalog: gateway_pb2.CatalogStatus, gateways: Collection[GatewayId]) -> None:
        """Add these reasons. A cached model that none of the gateways can use is failed."""
        for model in catalog.models:
            reported = {
                name: reason for name in gateways if (reason := self._reasons.get(name, {}).get(model.spec.name))
            }
            if reported and model.phase == model_pb2.MODEL_PHASE_CACHED:
                gateway, reason = next(iter(reported.items()))
                problem = f"gateway {gateway} cannot use its tokenizer or chat template: {reason}"
                model.reason = f"{model.reason}; {problem}" if model.reason else problem
                if len(reported) == len(gateways):
                    model.phase = model_pb2.MODEL_PHASE_FAILED
