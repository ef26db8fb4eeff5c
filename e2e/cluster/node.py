"""A node: containerd, kubelet and kube-proxy in one network and one mount namespace.

The mount namespace of its own lets several nodes of one machine have the kubelet's and the CNI's usual folders each,
and a /dev/shm each: what pods of one node share in memory, those of another do not see. Nodes bring torch and vLLM, as
nodes with GPUs bring the driver: pods of runtime class `torch` or `vllm` see the packages of .venv or .venv-vllm after
their own, because an image with torch and CUDA has 4.6 GB, which every node would copy twice.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import cgroups
from e2e.cluster.layout import DOMAIN, Layout, Node, authority
from e2e.cluster.machine import NAMESPACES
from e2e.cluster.processes import Started, find, run, start, stop, wait_for

PAUSE = "localhost/pause:1"
# What each node says that it has, and how many.
GPUS = ("nvidia.com/gpu", "4")
# Folders that kubelet, containerd, CNI and the examples use by their usual names; each node sees its own there.
OWN_FOLDERS = (
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/run/containerd",
    NAMESPACES,
    "/etc/cni/net.d",
    "/var/log/pods",
    "/var/log/containers",
    "/var/lib/aegaeon",
)
# Runtime classes, and the virtual environments whose packages their containers see.
_VENVS = {"torch": Path(sys.prefix), "vllm": Path(__file__).parents[2] / ".venv-vllm"}
# Where they see them, and the file that makes Python look there.
_OF_NODE = "/opt/of-node"
_OF_NODE_PTH = "/opt/aegaeon/lib/python3.11/site-packages/of-node.pth"
# Where engine pods of a node share weights and KV caches; anybody may make files there, as in /tmp.
_SHARED = "/dev/shm/aegaeon"
# As distributions have it; this machine may lack ::1, without which containerd forwards no port to a pod of IPv6 alone.
HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"


def start_containerd(layout: Layout, node: Node) -> None:
    """With what it needs; images can be loaded when this returns."""
    for own in OWN_FOLDERS:
        node.on_disk(own).mkdir(parents=True, exist_ok=True)
    (node.on_disk("/etc/cni/net.d") / "10-pods.conflist").write_text(json.dumps(_network(node)), "utf-8")
    (node.folder / "containerd.toml").write_text(_containerd(node.folder), "utf-8")
    for runtime, venv in _VENVS.items():
        (node.folder / f"{runtime}.json").write_text(json.dumps(_with_packages(node.folder, venv)), "utf-8")
    (node.folder / "of-node.pth").write_text(f"{_OF_NODE}\n", "utf-8")
    (node.folder / "kubelet.yaml").write_text(yaml.safe_dump(_kubelet(layout, node)), "utf-8")
    (node.folder / "proxy.yaml").write_text(yaml.safe_dump(_proxy(layout, node)), "utf-8")
    cgroups.make(node.namespace)
    _hold_mounts(layout, node)
    _start(layout, node, "containerd", "containerd", "--config", str(node.folder / "containerd.toml"))
    wait_for("containerd", node.socket.exists, layout, f"{node.name}-containerd")


def start_kubelet(layout: Layout, node: Node) -> None:
    """And kube-proxy; the node registers itself soon after."""
    _start(
        layout,
        node,
        "kubelet",
        str(layout.binaries / "kubelet"),
        f"--config={node.folder}/kubelet.yaml",
        f"--kubeconfig={layout.kubeconfig_of(node.name)}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--node-labels=topology.kubernetes.io/zone=zone-{node.name}",
    )
    proxy = (f"--config={node.folder}/proxy.yaml", f"--hostname-override={node.name}")
    _start(layout, node, "proxy", str(layout.binaries / "kube-proxy"), *proxy)
    plugins = node.on_disk("/var/lib/kubelet/device-plugins")
    offer = (sys.executable, "-m", "e2e.cluster.device_plugin", str(plugins), *GPUS)
    start(layout, f"{node.name}-gpus", offer, env={"PYTHONPATH": str(Path(__file__).parents[2])})


def ctr(node: Node, *words: str) -> str:
    """Run containerd's client on a node."""
    return run("ctr", "--address", str(node.socket), "--namespace", "k8s.io", *words)


def stop_node(layout: Layout, node: Node) -> None:
    """End kubelet and proxy, then the pods (shims outlive containerd), then containerd and the mounts."""
    for part in ("gpus", "kubelet", "proxy"):
        _stop(layout, node, part)
    cgroups.kill(node.namespace)
    for part in ("containerd", "mounts"):
        _stop(layout, node, part)
    cgroups.remove(node.namespace)


def shared_files(layout: Layout) -> list[Path]:
    """What lies in the nodes' shared memory."""
    folders = [root_of(layout, node) / _SHARED.lstrip("/") for node in layout.nodes]
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()]


def root_of(layout: Layout, node: Node) -> Path:
    """Where all that the node sees, its own mounts included, is seen from this machine."""
    return Path(f"/proc/{_holder(layout, node).pid}/root")


def mount(layout: Layout, node: Node, *words: str) -> None:
    """Run `mount` among the mounts of a node; they end with it. Raises ClusterError."""
    run("nsenter", f"--target={_holder(layout, node).pid}", "--mount", "--", "mount", *words)


def _hold_mounts(layout: Layout, node: Node) -> Started:
    """A process that does nothing but hold the node's mount namespace."""
    own = node.folder / "own"
    steps = [f"mount --bind {own}{path} {path}" for path in OWN_FOLDERS]
    (own / "hosts").write_text(HOSTS, "utf-8")
    steps += [f"mount --bind {own}/hosts /etc/hosts"]
    steps += ["mount --make-rshared /var/lib/kubelet", "mount -t tmpfs tmpfs /dev/shm", f"mkdir -m 1777 {_SHARED}"]
    script = " && ".join([*steps, f"touch {own}/ready", "exec sleep infinity"])
    (own / "ready").unlink(missing_ok=True)
    prefix = ("unshare", "--mount", "--propagation", "private", "--")
    holder = start(layout, f"{node.name}-mounts", ["sh", "-c", script], inside=prefix)
    wait_for("the node's mounts", (own / "ready").exists, layout, f"{node.name}-mounts", within_s=5)
    return holder


def _start(layout: Layout, node: Node, part: str, *argv: str) -> None:
    holder = _holder(layout, node)
    prefix = ("nsenter", f"--target={holder.pid}", "--mount", f"--net=/var/run/netns/{node.namespace}", "--")
    start(layout, f"{node.name}-{part}", argv, inside=prefix)


def _holder(layout: Layout, node: Node) -> Started:
    found = find(layout, f"{node.name}-mounts")
    assert found is not None, "the mount namespace is made first"
    return found


def _stop(layout: Layout, node: Node, part: str) -> None:
    if process := find(layout, f"{node.name}-{part}"):
        stop(layout, process)


def _containerd(folder: Path) -> str:
    runtimes = "".join(
        f"""\
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "{folder}/{name}.json"
"""
        for name in _VENVS
    )
    return f"""version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # The machine may lack CAP_SYS_RESOURCE; without this runc cannot start anything then.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
{runtimes}  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
"""


def _with_packages(folder: Path, venv: Path) -> dict[str, Any]:
    """The runtime's usual specification, with two more mounts."""
    spec: dict[str, Any] = json.loads(run("ctr", "oci", "spec"))
    packages = sysconfig.get_path("platlib", "venv", {"base": str(venv), "platbase": str(venv)})
    more = ((packages, _OF_NODE), (str(folder / "of-node.pth"), _OF_NODE_PTH))
    mounts = [{"type": "bind", "source": on, "destination": at, "options": ["rbind", "ro"]} for on, at in more]
    return spec | {"mounts": [*spec["mounts"], *mounts]}


def _network(node: Node) -> dict[str, object]:
    """Pods are joined to their node one by one and routed, so that every packet passes kube-proxy's rules."""
    join = {
        "type": "ptp",
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": str(node.pods)}]],
            "routes": [{"dst": "::/0" if node.pods.version == 6 else "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [join, ports]}


def _kubelet(layout: Layout, node: Node) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
            "webhook": {"enabled": True},
            "anonymous": {"enabled": False},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [layout.dns_ip],
        "clusterDomain": DOMAIN,
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.namespace}",
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "evictionHard": {"nodefs.available": "300Mi", "imagefs.available": "300Mi", "memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "resolvConf": "",
        "volumePluginDir": str(node.folder / "volume-plugins"),
        "nodeStatusUpdateFrequency": "5s",
        "shutdownGracePeriod": "0s",
        "serializeImagePulls": False,
        # What is killed again and again (e2e/chaos) would soon wait for minutes, and only for that.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "5s"},
    }


def _proxy(layout: Layout, node: Node) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": str(layout.pods),
        "clientConnection": {"kubeconfig": str(layout.kubeconfig_of("controllers"))},
        "conntrack": {"maxPerCore": 0, "min": 0},
        **({"bindAddress": "::"} if layout.ipv6 else {}),
        "healthzBindAddress": authority(node.address, 10256),
        "metricsBindAddress": authority(node.address, 10249),
    }
