"""What every text of the manifests may name in a cluster, by its path in the schema."""

from __future__ import annotations

from enum import Enum


class Rule(Enum):
    """What a text may name in a cluster. The first four are tenants' (ModelPools), the fifth the platform's."""

    MACHINE = "a file of a machine: refused in a cluster, by the API server and by the operator"
    MODELS = "a folder inside the GpuPool's volumes.models.path; engines and gateways follow links no further"
    URL = "http or https; which addresses, the GpuPool's allowedSources decides when dialling"
    SECRET = "a Secret, or an entry of one, in the object's own namespace"
    PLATFORM = "a path of nodes and pods, by the operator of the GpuPool's hardware; outside the pods' own folders"
    SERVER = "hosts and networks that sources may be at, by the platform; what is dialled is held to them"
    NETWORK = "addresses of peers: a valid network"
    OBJECT = "an object of Kubernetes by its name alone; across namespaces the other side must allow it"
    REMOTE = "something on the source's own server: never a file here"
    WORD = "nothing outside the object"


_SELECTOR = {"matchLabels{}": Rule.WORD, "matchExpressions[].key": Rule.WORD, "matchExpressions[].values[]": Rule.WORD}


def below(path: str, rules: dict[str, Rule]) -> dict[str, Rule]:
    return {f"{path}.{name}": rule for name, rule in rules.items()}


_NODES = {f"{of}[].{name}": Rule.WORD for of in ("matchExpressions", "matchFields") for name in ("key", "values[]")}
_PODS = {
    "topologyKey": Rule.WORD,
    **below("labelSelector", _SELECTOR),
    "namespaces[]": Rule.OBJECT,
    **below("namespaceSelector", _SELECTOR),
    "matchLabelKeys[]": Rule.WORD,
    "mismatchLabelKeys[]": Rule.WORD,
}
WHEN = ("requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution")
_AFFINITY = {
    **below(f"nodeAffinity.{WHEN[0]}.nodeSelectorTerms[]", _NODES),
    **below(f"nodeAffinity.{WHEN[1]}[].preference", _NODES),
    **{
        name: rule
        for kind in ("podAffinity", "podAntiAffinity")
        for name, rule in (
            below(f"{kind}.{WHEN[0]}[]", _PODS) | below(f"{kind}.{WHEN[1]}[].podAffinityTerm", _PODS)
        ).items()
    },
}
_ENV = {
    "name": Rule.WORD,
    "value": Rule.WORD,
    "valueFrom.fieldRef.fieldPath": Rule.WORD,
    "valueFrom.resourceFieldRef.resource": Rule.WORD,
    "valueFrom.resourceFieldRef.containerName": Rule.WORD,
    **{f"valueFrom.{of}.{part}": Rule.SECRET for of in ("secretKeyRef", "configMapKeyRef") for part in ("name", "key")},
}
_MOUNT = {"name": Rule.WORD, "mountPath": Rule.PLATFORM, "subPath": Rule.WORD}
_PROBE = {"httpGet.path": Rule.WORD, "grpc.service": Rule.WORD, "exec.command[]": Rule.WORD}
_CONTAINER = {
    **dict.fromkeys(("name", "image", "command[]", "args[]", "workingDir", "ports[].name"), Rule.WORD),
    **below("env[]", _ENV),
    **below("volumeMounts[]", _MOUNT),
    **below("resources.claims[]", {"name": Rule.WORD, "request": Rule.WORD}),
    **{f"{of}Probe.{name}": rule for of in ("startup", "readiness", "liveness") for name, rule in _PROBE.items()},
}
_VOLUME = {
    "name": Rule.WORD,
    "hostPath.path": Rule.PLATFORM,
    "configMap.name": Rule.OBJECT,
    "secret.secretName": Rule.SECRET,
    **{f"{of}.items[].key": Rule.SECRET for of in ("configMap", "secret")},
    **{f"{of}.items[].path": Rule.WORD for of in ("configMap", "secret")},
    "persistentVolumeClaim.claimName": Rule.OBJECT,
    "csi.driver": Rule.OBJECT,
    "csi.fsType": Rule.WORD,
    "csi.volumeAttributes{}": Rule.WORD,
}
_POD = {
    "labels{}": Rule.WORD,
    "annotations{}": Rule.WORD,
    "nodeSelector{}": Rule.WORD,
    "tolerations[].key": Rule.WORD,
    "tolerations[].value": Rule.WORD,
    "priorityClassName": Rule.OBJECT,
    "runtimeClassName": Rule.OBJECT,
    **below("affinity", _AFFINITY),
    "topologySpreadConstraints[].topologyKey": Rule.WORD,
    "topologySpreadConstraints[].matchLabelKeys[]": Rule.WORD,
    **below("topologySpreadConstraints[].labelSelector", _SELECTOR),
    **below("env[]", _ENV),
    **below("volumeMounts[]", _MOUNT),
    **below("volumes[]", _VOLUME),
    **below("containers[]", _CONTAINER),
    **below("initContainers[]", _CONTAINER),
    **below("resources.claims[]", {"name": Rule.WORD, "request": Rule.WORD}),
    "resourceClaims[].name": Rule.WORD,
    "resourceClaims[].resourceClaimName": Rule.OBJECT,
    "resourceClaims[].resourceClaimTemplateName": Rule.OBJECT,
}
SOURCE = "modelpools.models[].source"
SOURCES = (SOURCE, "modelpools.models[].adapters[].source")
_OF_SOURCE = {
    "hostPath": Rule.MODELS,
    "huggingFace.repository": Rule.REMOTE,
    "huggingFace.revision": Rule.REMOTE,
    "s3.bucket": Rule.REMOTE,
    "s3.prefix": Rule.REMOTE,
    "s3.endpoint": Rule.URL,
    "http.url": Rule.URL,
    **{f"{kind}.credentialsFile": Rule.MACHINE for kind in ("huggingFace", "s3", "http")},
    **{
        f"{kind}.credentialsSecretRef.{part}": Rule.SECRET
        for kind in ("huggingFace", "s3", "http")
        for part in ("name", "key")
    },
}
TABLE: dict[str, Rule] = {
    "gpupools.accelerator.device": Rule.WORD,
    "gpupools.accelerator.resourceName": Rule.WORD,
    "gpupools.memory.disk.path": Rule.PLATFORM,
    "gpupools.allowedNamespaces[]": Rule.OBJECT,
    "gpupools.allowedSources[]": Rule.SERVER,
    "gpupools.egress.httpsProxy": Rule.URL,
    "gpupools.egress.httpProxy": Rule.URL,
    "gpupools.egress.noProxy[]": Rule.SERVER,
    "gpupools.egress.credentialsSecretRef.name": Rule.SECRET,
    "gpupools.egress.credentialsSecretRef.key": Rule.SECRET,
    "gpupools.egress.caConfigMapRef.name": Rule.OBJECT,
    "gpupools.egress.caConfigMapRef.key": Rule.SECRET,
    "gpupools.gateway.trustedProxies[]": Rule.NETWORK,
    "gpupools.gateway.corsOrigins[]": Rule.WORD,
    "gpupools.tracing.endpoint": Rule.URL,
    "gpupools.batches.folder": Rule.MACHINE,
    "gpupools.batches.claim": Rule.OBJECT,
    "gpupools.batches.s3.bucket": Rule.REMOTE,
    "gpupools.batches.s3.prefix": Rule.REMOTE,
    "gpupools.batches.s3.region": Rule.WORD,
    "gpupools.batches.s3.endpoint": Rule.URL,
    "gpupools.batches.s3.credentialsFile": Rule.MACHINE,
    "gpupools.batches.s3.credentialsSecretRef.name": Rule.SECRET,
    "gpupools.batches.s3.credentialsSecretRef.key": Rule.SECRET,
    "gpupools.gateway.endpointPicker.service.name": Rule.OBJECT,
    "gpupools.gateway.endpointPicker.allowedFrom[].namespace": Rule.OBJECT,
    "gpupools.gateway.endpointPicker.allowedFrom[].podLabels{}": Rule.WORD,
    "gpupools.gateway.endpointPicker.allowedFrom[].cidr": Rule.NETWORK,
    "gpupools.images.control": Rule.WORD,
    "gpupools.images.engine": Rule.WORD,
    "gpupools.images.pullSecrets[]": Rule.SECRET,
    **{f"gpupools.serviceAccounts.{role}": Rule.OBJECT for role in ("engines", "gateway")},
    **{f"gpupools.{of}.{name}": rule for of in ("podTemplate", "controlPodTemplate") for name, rule in _POD.items()},
    "gpupools.volumes.models.path": Rule.PLATFORM,
    "gpupools.volumes.models.claim": Rule.OBJECT,
    "gpupools.volumes.sharedClaim": Rule.OBJECT,
    "modelpools.gpuPoolRef.name": Rule.OBJECT,
    "modelpools.gpuPoolRef.namespace": Rule.OBJECT,
    "modelpools.sharePrefix": Rule.WORD,
    "modelpools.models[].publicPrompts[]": Rule.WORD,
    "modelpools.models[].name": Rule.WORD,
    "modelpools.models[].adapters[].name": Rule.WORD,
    **{f"{source}.{name}": rule for source in SOURCES for name, rule in _OF_SOURCE.items()},
    "modelpools.tenants[].name": Rule.WORD,
    "modelpools.tenants[].keyFile": Rule.MACHINE,
    "modelpools.tenants[].keySecretRef.name": Rule.SECRET,
    "modelpools.tenants[].keySecretRef.key": Rule.SECRET,
    "modelpools.tenants[].models[]": Rule.WORD,
    "modelpools.gateway.parentRefs[].name": Rule.OBJECT,
    "modelpools.gateway.parentRefs[].namespace": Rule.OBJECT,
    "modelpools.gateway.parentRefs[].sectionName": Rule.OBJECT,
    "modelpools.gateway.hostnames[]": Rule.WORD,
    "modelpools.gateway.pathPrefix": Rule.WORD,
    "modelpools.gateway.header.name": Rule.WORD,
    "modelpools.gateway.header.value": Rule.WORD,
}
