"""The machine is as it was when the last of its clusters has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.cluster.machine import NAMESPACES, SYSCTLS, Machine

KUBELET = "/var/lib/kubelet"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """With the parameters of a kernel that no kubelet has touched."""
    (tmp_path / "var" / "lib").mkdir(parents=True)
    for name in SYSCTLS:
        sysctl(Machine(tmp_path), name).parent.mkdir(parents=True, exist_ok=True)
        sysctl(Machine(tmp_path), name).write_text("0\n", "utf-8")
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/mountinfo").write_text("24 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n", "utf-8")
    return Machine(tmp_path)


def sysctl(machine: Machine, name: str) -> Path:
    return machine.root / "proc/sys" / name


def there(machine: Machine, *paths: str) -> list[bool]:
    return [(machine.root / path.removeprefix("/")).exists() for path in paths]


def test_kernel_parameters_and_folders_are_put_back(machine: Machine) -> None:
    machine.claim(0, [NAMESPACES, KUBELET, "/etc/cni/net.d"])
    assert there(machine, NAMESPACES, KUBELET, "/etc/cni/net.d") == [True, True, True]
    sysctl(machine, "kernel/panic").write_text("10\n", "utf-8")

    machine.release(0)

    assert sysctl(machine, "kernel/panic").read_text("utf-8").strip() == "0"
    assert there(machine, "/run", KUBELET, "/etc") == [False, False, False]
    assert [file.name for file in (machine.root / "var/lib").iterdir()] == []


def test_existing_mounts_and_those_in_use_stay(machine: Machine) -> None:
    (machine.root / "var/lib/kubelet").mkdir()
    machine.claim(0, [KUBELET, "/run/containerd"])
    (machine.root / "run/containerd/in-use").touch()

    machine.release(0)

    assert there(machine, KUBELET, "/run/containerd/in-use") == [True, True]


def test_only_the_last_of_several_clusters_restores(machine: Machine) -> None:
    machine.claim(0, [KUBELET])
    sysctl(machine, "vm/overcommit_memory").write_text("1\n", "utf-8")
    machine.claim(3, [KUBELET])  # it finds what kubelets of the first have set

    machine.release(0)
    assert sysctl(machine, "vm/overcommit_memory").read_text("utf-8").strip() == "1"
    assert there(machine, KUBELET) == [True]
    machine.release(3)

    assert sysctl(machine, "vm/overcommit_memory").read_text("utf-8").strip() == "0"
    assert there(machine, KUBELET) == [False]


def test_removing_a_cluster_that_does_not_exist_changes_nothing(machine: Machine) -> None:
    machine.claim(0, [KUBELET])

    machine.release(1)

    assert there(machine, KUBELET) == [True]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_a_folder_mounted_on_itself_is_seen_and_unmounted_when_it_was_not_before() -> None:
    """In a mount namespace of its own, with the record of the machine in a folder that goes with it."""
    script = """
import json, subprocess, sys
from pathlib import Path
from e2e.cluster.machine import NAMESPACES, Machine
run = lambda *argv: subprocess.run(argv, check=True)
while NAMESPACES in Path("/proc/self/mountinfo").read_text().split():  # of clusters that are up
    run("umount", "--recursive", NAMESPACES)
for folder in ("/var/lib", "/run"):
    run("mount", "-t", "tmpfs", "tmpfs", folder)
for before in (False, True):
    Path(NAMESPACES).mkdir(exist_ok=True)
    bind = ("mount", "--bind", NAMESPACES, NAMESPACES)
    before and run(*bind)
    Machine().claim(0, [])
    before or run(*bind)
    Machine().release(0)
    mounted = NAMESPACES in Path("/proc/self/mountinfo").read_text().split()
    assert mounted == before, (before, mounted)
"""
    own = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*own, "true"], check=False).returncode:
        pytest.skip("mounts cannot be made private here, as in a chroot or an unprivileged container")
    subprocess.run([*own, sys.executable, "-c", script], check=True)
