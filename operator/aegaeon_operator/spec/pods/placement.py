"""Where pods run: affinity, spreading, tolerations, as Kubernetes writes them."""

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
_OF_PODS = "Labels of the pods that are meant."
_ALL_TAINTS = "without key it is for all taints, which takes operator: Exists"
_NO_VALUE = "with operator: Exists there is no value; remove it, or take operator: Equal"
_FOR_SECONDS = "tolerationSeconds needs effect: NoExecute; with the others a pod that runs stays"
_VALUES = "In and NotIn need values, Exists and DoesNotExist take none, and Gt and Lt take one"
_DOMAINS = "minDomains needs whenUnsatisfiable: DoNotSchedule"
# Of a requirement: how many values each operator takes.
_COUNTED = (
    "self.operator in ['In', 'NotIn'] ? size(self.values) > 0 : "
    "self.operator in ['Exists', 'DoesNotExist'] ? size(self.values) == 0 : size(self.values) == 1"
)


def _counted(operator: str, values: tuple[str, ...]) -> bool:
    if operator in ("In", "NotIn"):
        return len(values) > 0
    return len(values) == (0 if operator in ("Exists", "DoesNotExist") else 1)


class Toleration(Strict):
    """A taint of nodes that pods may run in spite of, as Kubernetes writes it."""

    model_config = rules(
        ("(has(self.key) && self.key != '') || (has(self.operator) && self.operator == 'Exists')", _ALL_TAINTS),
        ("!has(self.operator) || self.operator == 'Equal' || !has(self.value) || self.value == ''", _NO_VALUE),
        ("!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')", _FOR_SECONDS),
    )

    key: Annotated[str, Field(max_length=316)] | None = Field(
        default=None, description="Key of the taint; left out, with operator Exists: every taint."
    )
    operator: Literal["Exists", "Equal"] | None = Field(default=None, description="How the value is compared.")
    value: LabelValue | None = Field(default=None, description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; left out: all effects."
    )
    toleration_seconds: Annotated[int, Field(ge=0, le=86400)] | None = Field(
        default=None, description="How long a pod stays after such a taint came (NoExecute)."
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
    """What a label must be."""

    model_config = rules((_COUNTED, _VALUES))

    key: _Key = Field(description="Key of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="How it is compared with values.")
    values: _Values = Field(default=(), description="With In and NotIn: the values; with the others: none.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        return self._refused(() if _counted(self.operator, self.values) else (_VALUES,))


class LabelSelector(Strict):
    """Objects by their labels; all requirements must hold."""

    match_labels: Labels = Field(default={}, description="Labels with exactly these values.")
    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=16)] = Field(
        default=(), description="Further requirements."
    )


class NodeRequirement(Strict):
    """What a label, or a field, of a node must be."""

    model_config = rules((_COUNTED, _VALUES))

    key: _Key = Field(description="Key of the label, or the field metadata.name.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(
        description="How it is compared with values."
    )
    values: _Values = Field(default=(), description="What it is compared with; Gt and Lt take one number.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        return self._refused(() if _counted(self.operator, self.values) else (_VALUES,))


class NodeSelectorTerm(Strict):
    """Requirements of a node that must hold together."""

    match_expressions: Annotated[tuple[NodeRequirement, ...], Field(max_length=16)] = Field(
        default=(), description="Of its labels."
    )
    match_fields: Annotated[tuple[NodeRequirement, ...], Field(max_length=16)] = Field(
        default=(), description="Of its fields; metadata.name is the only one."
    )


class NodeSelector(Strict):
    """Nodes for which one of the terms holds."""

    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], Field(min_length=1, max_length=16)] = Field(
        description="Terms, of which one must hold."
    )


class PreferredNodes(Strict):
    """Nodes that are preferred."""

    weight: _Weight = Field(description="How much, beside the other preferences.")
    preference: NodeSelectorTerm = Field(description="Which nodes.")


class NodeAffinity(Strict):
    """Nodes by their labels."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = Field(
        default=None, description="Nodes that pods may run on."
    )
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredNodes, ...], Field(max_length=16)
    ] = Field(default=(), description="Nodes that are taken first.")


class PodAffinityTerm(Strict):
    """Pods beside which, or apart from which, pods run."""

    topology_key: QualifiedName = Field(description="Label of nodes whose value says what is beside what.")
    label_selector: LabelSelector = Field(description=_OF_PODS)
    namespaces: Annotated[tuple[ObjectName, ...], Field(max_length=16)] = Field(
        default=(), description="Their namespaces; left out: the GpuPool's."
    )
    namespace_selector: LabelSelector | None = Field(default=None, description="Or their namespaces by labels.")
    match_label_keys: _LabelKeys = Field(default=(), description="Labels whose values are those of the new pod.")
    mismatch_label_keys: _LabelKeys = Field(default=(), description="Labels whose values are others.")


class PreferredPods(Strict):
    """Pods whose neighbourhood is preferred."""

    weight: _Weight = Field(description="How much, beside the other preferences.")
    pod_affinity_term: PodAffinityTerm = Field(description="Which pods.")


class PodAffinity(Strict):
    """Pods that these are placed by."""

    required_during_scheduling_ignored_during_execution: Annotated[
        tuple[PodAffinityTerm, ...], Field(max_length=16)
    ] = Field(default=(), description="What must hold on a node.")
    preferred_during_scheduling_ignored_during_execution: Annotated[tuple[PreferredPods, ...], Field(max_length=16)] = (
        Field(default=(), description="What is preferred.")
    )


class Affinity(Strict):
    """Which nodes, and which other pods, pods are placed by; the operator's own rules stay beside it."""

    node_affinity: NodeAffinity | None = Field(default=None, description="Nodes by their labels.")
    pod_affinity: PodAffinity | None = Field(default=None, description="Pods to be beside.")
    pod_anti_affinity: PodAffinity | None = Field(default=None, description="Pods to be apart from.")


class Spread(Strict):
    """How pods of a component are spread; one of the same topologyKey replaces the operator's."""

    model_config = rules(("!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'", _DOMAINS))

    max_skew: Annotated[int, Field(ge=1, le=1024)] = Field(description="Pods more in one place than in another.")
    topology_key: QualifiedName = Field(description="Label of nodes whose value is a place.")
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        description="Whether a pod waits where it cannot be held."
    )
    label_selector: LabelSelector | None = Field(
        default=None, description="Pods that are counted; left out: those of the same component of the pool."
    )
    min_domains: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Fewest places, with DoNotSchedule."
    )
    node_affinity_policy: Literal["Honor", "Ignore"] | None = Field(
        default=None, description="Whether nodes that the pod may not run on count."
    )
    node_taints_policy: Literal["Honor", "Ignore"] | None = Field(
        default=None, description="Whether nodes with taints that the pod does not tolerate count."
    )
    match_label_keys: _LabelKeys = Field(default=(), description="Labels whose values are those of the new pod.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        waits = self.when_unsatisfiable == "DoNotSchedule"
        return self._refused(() if self.min_domains is None or waits else (_DOMAINS,))
