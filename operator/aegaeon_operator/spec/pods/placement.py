"""Placement of pods: affinity, topology spread, tolerations, with Kubernetes' own field names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aegaeon_operator.spec.base import ObjectName, Strict
from aegaeon_operator.spec.cel import rules
from aegaeon_operator.spec.kubernetes import Labels, LabelValue, QualifiedName

_Key = Annotated[str, Field(min_length=1, max_length=316)]
_Values = Annotated[tuple[LabelValue, ...], Field(max_length=64)]
_Weight = Annotated[int, Field(ge=1, le=100)]
_LabelKeys = Annotated[tuple[_Key, ...], Field(max_length=16)]
_OF_PODS = "Selector of the pods."
_ALL_TAINTS = "a toleration without key matches all taints and needs operator: Exists"
_NO_VALUE = "value is not allowed with operator: Exists; remove it, or use operator: Equal"
_FOR_SECONDS = "tolerationSeconds needs effect: NoExecute; the other effects do not evict running pods"
_VALUES = "In and NotIn need values, Exists and DoesNotExist take none, and Gt and Lt take one"
_DOMAINS = "minDomains needs whenUnsatisfiable: DoNotSchedule"
# The number of values that each operator of a requirement takes.
_COUNTED = (
    "self.operator in ['In', 'NotIn'] ? size(self.values) > 0 : "
    "self.operator in ['Exists', 'DoesNotExist'] ? size(self.values) == 0 : size(self.values) == 1"
)


def _counted(operator: str, values: tuple[str, ...]) -> bool:
    if operator in ("In", "NotIn"):
        return len(values) > 0
    return len(values) == (0 if operator in ("Exists", "DoesNotExist") else 1)


class Toleration(Strict):
    """A toleration of a taint of nodes."""

    model_config = rules(
        ("(has(self.key) && self.key != '') || (has(self.operator) && self.operator == 'Exists')", _ALL_TAINTS),
        ("!has(self.operator) || self.operator == 'Equal' || !has(self.value) || self.value == ''", _NO_VALUE),
        ("!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')", _FOR_SECONDS),
    )

    key: Annotated[str, Field(max_length=316)] | None = Field(
        default=None, description="Key of the taint; without it, with operator Exists: every taint."
    )
    operator: Literal["Exists", "Equal"] | None = Field(
        default=None, description="Comparison with the taint's value; default: Equal."
    )
    value: LabelValue | None = Field(default=None, description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; default: all effects."
    )
    toleration_seconds: Annotated[int, Field(ge=0, le=86400)] | None = Field(
        default=None, description="Time until a running pod is evicted after the taint was added (NoExecute)."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        return self._refused(self._problems())

    def _problems(self) -> Iterator[str]:
        if not self.key and self.operator != "Exists":
            yield _ALL_TAINTS
        if self.operator == "Exists" and self.value:
            yield _NO_VALUE
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            yield _FOR_SECONDS


class LabelRequirement(Strict):
    """A requirement on a label."""

    model_config = rules((_COUNTED, _VALUES))

    key: _Key = Field(description="Key of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="Comparison with `values`.")
    values: _Values = Field(default=(), description="Values for In and NotIn; empty for Exists and DoesNotExist.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        return self._refused(() if _counted(self.operator, self.values) else (_VALUES,))


class LabelSelector(Strict):
    """A selector of objects by label; all its requirements must hold."""

    match_labels: Labels = Field(default={}, description="Labels with their exact values.")
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=16)] = Field(
        default=(), description="Additional requirements."
    )


class NodeRequirement(Strict):
    """A requirement on a label, or a field, of a node."""

    model_config = rules((_COUNTED, _VALUES))

    key: _Key = Field(description="Key of the label, or the field metadata.name.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(
        description="Comparison with `values`."
    )
    values: _Values = Field(default=(), description="Values of the comparison; Gt and Lt take one number.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        return self._refused(() if _counted(self.operator, self.values) else (_VALUES,))


class NodeSelectorTerm(Strict):
    """Requirements on a node, all of which must hold."""

    match_expressions: Annotated[tuple[NodeRequirement, ...], Field(max_length=16)] = Field(
        default=(), description="Requirements on labels."
    )
    match_fields: Annotated[tuple[NodeRequirement, ...], Field(max_length=16)] = Field(
        default=(), description="Requirements on fields; the only field is metadata.name."
    )


class NodeSelector(Strict):
    """A selector of nodes for which at least one of the terms holds."""

    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], Field(min_length=1, max_length=16)] = Field(
        description="Terms, at least one of which must hold."
    )


class PreferredNodes(Strict):
    """A preference for nodes, with a weight."""

    weight: _Weight = Field(description="Weight relative to the other preferences.")
    preference: NodeSelectorTerm = Field(description="Requirements on the preferred nodes.")


class NodeAffinity(Strict):
    """Node affinity: requirements on and preferences for nodes."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = Field(
        default=None, description="Requirements on the nodes of the pods."
    )
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredNodes, ...], Field(max_length=16)
    ] = Field(default=(), description="Preferences for nodes.")


class PodAffinityTerm(Strict):
    """Pods near which, or apart from which, the pods run."""

    topology_key: QualifiedName = Field(description="Node label; nodes with the same value are one domain.")
    label_selector: LabelSelector = Field(description=_OF_PODS)
    namespaces: Annotated[tuple[ObjectName, ...], Field(max_length=16)] = Field(
        default=(), description="Namespaces of the pods; default: the GpuPool's."
    )
    namespace_selector: LabelSelector | None = Field(default=None, description="Selector of the pods' namespaces.")
    match_label_keys: _LabelKeys = Field(default=(), description="Labels that must have the new pod's values.")
    mismatch_label_keys: _LabelKeys = Field(default=(), description="Labels that must not have the new pod's values.")


class PreferredPods(Strict):
    """A preference for the domains of other pods, with a weight."""

    weight: _Weight = Field(description="Weight relative to the other preferences.")
    pod_affinity_term: PodAffinityTerm = Field(description="The other pods and the topology.")


class PodAffinity(Strict):
    """Pod affinity or anti-affinity: requirements on and preferences for the domains of other pods."""

    required_during_scheduling_ignored_during_execution: Annotated[
        tuple[PodAffinityTerm, ...], Field(max_length=16)
    ] = Field(default=(), description="Requirements.")
    preferred_during_scheduling_ignored_during_execution: Annotated[tuple[PreferredPods, ...], Field(max_length=16)] = (
        Field(default=(), description="Preferences.")
    )


class Affinity(Strict):
    """Affinity to nodes and to other pods, in addition to the operator's own rules."""

    node_affinity: NodeAffinity | None = Field(default=None, description="Affinity to nodes.")
    pod_affinity: PodAffinity | None = Field(default=None, description="Affinity to pods.")
    pod_anti_affinity: PodAffinity | None = Field(default=None, description="Anti-affinity to pods.")


class Spread(Strict):
    """A topology spread constraint of the component's pods; it replaces the operator's with the same topologyKey."""

    model_config = rules(("!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'", _DOMAINS))

    max_skew: Annotated[int, Field(ge=1, le=1024)] = Field(
        description="Maximum difference of the number of pods between domains."
    )
    topology_key: QualifiedName = Field(description="Node label; nodes with the same value are one domain.")
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        description="DoNotSchedule: a pod that would break the constraint stays pending. ScheduleAnyway: it runs."
    )
    label_selector: LabelSelector | None = Field(
        default=None, description="Selector of the counted pods; default: the pool's pods of the same component."
    )
    min_domains: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Minimum number of domains, with DoNotSchedule."
    )
    node_affinity_policy: Literal["Honor", "Ignore"] | None = Field(
        default=None, description="Honor: count only nodes that match the pod's node affinity. Ignore: count all nodes."
    )
    node_taints_policy: Literal["Honor", "Ignore"] | None = Field(
        default=None, description="Honor: count only nodes whose taints the pod tolerates. Ignore: count all nodes."
    )
    match_label_keys: _LabelKeys = Field(default=(), description="Labels that must have the new pod's values.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        waits = self.when_unsatisfiable == "DoNotSchedule"
        return self._refused(() if self.min_domains is None or waits else (_DOMAINS,))
