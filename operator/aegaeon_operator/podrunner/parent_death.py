"""`python -I -S parent_death.py PARENT_PID COMMAND...` executes COMMAND so that the kernel kills it when the parent
dies, even by SIGKILL. It is a separate program, because running Python between fork and exec (preexec_fn) can deadlock.
Standard library only; it runs without site packages.
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
    if os.getppid() != parent:  # the parent died before prctl
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
