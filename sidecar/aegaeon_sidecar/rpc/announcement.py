"""Announces what an engine does before it can attach: an import of vLLM takes 10 to 30 s of a core."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from aegaeon_proto.certificates import TlsError
from aegaeon_proto.channels import open_blocking_channel
from aegaeon_proto.roles import Role
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import engine_pb2_grpc as rpc
from aegaeon_sidecar.config import SidecarConfig
from aegaeon_sidecar.memory.lost_devices import Suspect

log = logging.getLogger(__name__)

EVERY_S = 4.0  # schedulers forget it after 15 s
_ANSWER_S = 2.0


@contextmanager
def announced(config: SidecarConfig, doing: str, suspect: Suspect | None = None) -> Iterator[None]:
    """The scheduler that leads is notified of it until the end of the block, and of a device that the engine leaves
    alone. From a thread: the caller's is busy."""
    ended = threading.Event()
    threading.Thread(
        target=_announce, args=(config, _message(config, doing, suspect), ended), name="announcement", daemon=True
    ).start()
    try:
        yield
    finally:
        ended.set()


def _message(config: SidecarConfig, doing: str, suspect: Suspect | None) -> pb.Announcement:
    message = pb.Announcement(instance=config.instance, doing=doing)
    if suspect is not None:
        device = pb.SuspectDevice(
            instance=config.instance,
            node=config.node,
            uuid=suspect.uuid,
            error=suspect.error,
            losses=suspect.losses,
        )
        message.suspect.CopyFrom(device)
    return message


def _announce(config: SidecarConfig, message: pb.Announcement, ended: threading.Event) -> None:
    while not ended.is_set():
        for target in (config.scheduler, *config.standbys):
            try:
                with open_blocking_channel(target, config.tls, Role.SCHEDULER) as channel:
                    rpc.EngineStub(channel).Announce(message, timeout=_ANSWER_S)
            except (grpc.RpcError, TlsError) as error:  # stands by, is not there yet, or of a version without
                log.debug("%s does not hear that this engine is %s: %s", target, message.doing, error)
        ended.wait(EVERY_S)
