"""A port-forward whose client leaves while the pod still sends: nothing may fail behind it."""

from __future__ import annotations

import socket

import pytest
from kubernetes import client

from aegaeon_cli.kubectl import forward


def test_a_client_that_leaves_does_not_break_what_is_sent_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    here, pod = socket.socketpair()
    pod.settimeout(20)
    monkeypatch.setattr(forward, "connection", lambda *_: here)

    with forward.forwarded(client.CoreV1Api(), "n", "scheduler", 7003) as opened:
        near = socket.socket(socket.AF_UNIX)
        near.connect(opened.path)
        near.sendall(b"question")
        assert pod.recv(99) == b"question"
        pod.sendall(b"answer")
        assert near.recv(99) == b"answer"
        near.close()

        assert pod.recv(99) == b""
        for _ in range(64):  # the client's thread may have data for a socket whose end it has not seen yet
            pod.sendall(bytes(1 << 16))
        pod.close()


def test_a_pod_that_closes_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    here, pod = socket.socketpair()
    monkeypatch.setattr(forward, "connection", lambda *_: here)

    with forward.forwarded(client.CoreV1Api(), "n", "scheduler", 7003) as opened, socket.socket(socket.AF_UNIX) as near:
        near.settimeout(20)
        near.connect(opened.path)
        pod.sendall(b"the last")
        pod.close()

        assert near.recv(99) + near.recv(99) == b"the last"
