"""Ties a process to its parent: `python -I -S tether.py PARENT_PID COMMAND...` becomes COMMAND, which the kernel
kills when the parent dies, kill -9 included. A program of its own, because running Python between fork and exec
(preexec_fn) can deadlock. Standard library only; it runs without site packages.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
