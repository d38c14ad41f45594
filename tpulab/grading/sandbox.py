"""Limits on the process that runs the learner's code, as far as the system knows them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys
from dataclasses import asdict, dataclass
from typing import Any

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
# Landlock's system calls have the same numbers on every architecture; see landlock(7)
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_WRITING = (1 << 1) | sum(1 << bit for bit in range(4, 13))
_FILE_RIGHTS = (1 << 1) | _TRUNCATE
_SCOPE_SIGNAL = 1 << 1


@dataclass(frozen=True)
class Limits:
    """What the learner's code may take.

    Attributes:
        stage_seconds: wall-clock time of each stage (trace, one lowering, one run, …).
        faithful_seconds: wall-clock time of the faithful interpreter, which hangs on a deadlock.
        memory_bytes: address space beyond what the process has at its start.
        output_bytes: what it may print before it is stopped.
        file_bytes: the largest file it may write.
    """

    stage_seconds: float = 40.0
    faithful_seconds: float = 25.0
    memory_bytes: int = 8 << 30
    output_bytes: int = 8 << 20
    file_bytes: int = 64 << 20

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a message."""
        return asdict(self)


def own_group() -> None:
    """Lead a process group, so that everything started here can be ended at once."""
    if hasattr(os, "setpgid"):
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)


def die_with_parent() -> None:
    """Linux: be killed when the process that forked this one ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Linux: become the parent of what is left behind by children of this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """Linux: process ids of this process's children; empty where the system does not say."""
    found: list[int] = []
    own = str(os.getpid())
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat") as file:
                # "pid (command) state parent …"; the command may hold anything
                if file.read().rpartition(")")[2].split()[1] == own:
                    found.append(int(name))
    return found


def leave_network() -> bool:
    """Linux: move into a network namespace without interfaces, where the system allows it."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) == 0:
        return True
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    # in the new user namespace this process must keep its own number, or it owns no file any more
    for path, text in (
        ("/proc/self/setgroups", "deny"),
        ("/proc/self/uid_map", f"{user} {user} 1"),
        ("/proc/self/gid_map", f"{group} {group} 1"),
    ):
        with contextlib.suppress(OSError), open(path, "w") as file:
            file.write(text)
    return True


def fence(folder: str) -> bool:
    """Linux 5.13 and newer: write below ``folder`` only, and signal no process outside.

    Returns:
        Whether the system can do that (Landlock); what an older one cannot do is left out.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return False
    # rename across folders came with version 2, truncation with 3
    writing = _WRITING | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    # version 6 keeps signals inside
    attributes = struct.pack("<QQQ", writing, 0, _SCOPE_SIGNAL if version >= 6 else 0)
    size = 24 if version >= 6 else 8
    ruleset = libc.syscall(_LANDLOCK_CREATE, attributes, size, 0)
    if ruleset < 0:
        return False
    try:
        for path, allowed in ((folder, writing), ("/dev/null", writing & _FILE_RIGHTS)):
            with contextlib.suppress(OSError):
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
                rule = struct.pack("<Qi", allowed, place)
                libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0)
                os.close(place)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return bool(libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def apply(limits: Limits) -> None:
    """Set the limits that the operating system enforces; those it does not know are left out."""
    try:
        import resource
    except ImportError:
        return
    seconds = int(8 * (limits.stage_seconds + limits.faithful_seconds)) * (os.cpu_count() or 1)
    wanted = [
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_CORE, 0),
    ]
    if sys.platform == "linux":
        wanted.append((resource.RLIMIT_AS, _address_space_bytes() + limits.memory_bytes))
    for which, value in wanted:
        with contextlib.suppress(ValueError, OSError):
            _, hard = resource.getrlimit(which)
            allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (allowed, allowed))


def _address_space_bytes() -> int:
    """Address space this process already has."""
    try:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 4 << 30
