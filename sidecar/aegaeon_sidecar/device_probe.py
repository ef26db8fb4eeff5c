"""`python -m aegaeon_sidecar.device_probe --device cuda:N --ranks R`: whether these GPUs allocate, copy and compute.

Exit status 0: they do. A process of its own, since an error that is sticky spoils all that a process does after it.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys

import numpy as np
import torch

from aegaeon_native import CopyLane, CudaDevice, NativeError, Range, SlabPool
from aegaeon_proto.logs import configure
from aegaeon_sidecar.backends.device import open_devices
from aegaeon_sidecar.domain.errors import SidecarError
from aegaeon_sidecar.memory.gpu import open_gpus

log = logging.getLogger(__name__)

_MOST_S = 90  # where the process that started it is gone
_SIDE = 2048  # of the matrices that are multiplied


def main() -> int:
    """Exit status 0: healthy, 1: not."""
    configure(os.environ)
    parser = argparse.ArgumentParser(prog="aegaeon_sidecar.device_probe", description=__doc__)
    parser.add_argument("--device", required=True, metavar="cuda:N", help="of the first rank")
    parser.add_argument("--ranks", type=int, default=1, metavar="R", help="devices from there on")
    arguments = parser.parse_args()
    signal.alarm(_MOST_S)
    try:
        for gpu in open_gpus(arguments.device, arguments.ranks):
            if gpu is not None:
                check_copies(gpu)
        check_products(arguments.device, arguments.ranks)
    except (NativeError, SidecarError, RuntimeError) as error:
        log.error("%s", error)
        return 1
    return 0


def check_copies(gpu: CudaDevice) -> None:
    """A slab comes back from the GPU as it went there. Raises NativeError."""
    sent = np.random.default_rng().integers(0, 256, gpu.granularity, dtype=np.uint8)
    back = np.zeros_like(sent)
    pool, lane = SlabPool.cuda(gpu, sent.nbytes, 1), CopyLane("probe", device=gpu)
    place = Range(pool, 1)
    place.map(0, pool.take(1))
    for to, of in ((place.address, sent.ctypes.data), (back.ctypes.data, place.address)):
        lane.copy(to, of, sent.nbytes)
        while not lane.synchronize(1.0):
            pass
    for part in (lane, place, pool):
        part.close()
    if not np.array_equal(sent, back):
        raise NativeError(f"{gpu.name} gives back other bytes than it was sent")


def check_products(device: str, ranks: int) -> None:
    """Kernels run, and give what they should. Raises BackendError, or torch's error."""
    for each in open_devices(device, ranks):
        ones = torch.ones(_SIDE, _SIDE, device=each)
        if not bool((ones @ ones == _SIDE).all()):
            raise RuntimeError(f"{each} computes wrong products")


if __name__ == "__main__":
    sys.exit(main())
