"""The demo runs beside a program that has its port."""

from __future__ import annotations

import io
import socket

from rich.console import Console

from aegaeon_cli.demo.command import other_port


def test_a_taken_port_is_replaced_by_a_free_one_and_both_are_named() -> None:
    said = io.StringIO()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        wanted = other.getsockname()[1]
        port = other_port(wanted, Console(file=said))
    assert port not in (None, wanted)
    assert said.getvalue() == f"port {wanted} is in use; the demo uses port {port}\n"
    assert other_port(wanted, Console(file=said)) is None
