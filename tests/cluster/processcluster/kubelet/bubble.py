"""The bubblewrap command line of a container, and commands inside a running one.

Pure: takes what a container is and gives argv. The root is built up from nothing, so that any mount path works and a
read-only root is one; /usr is this machine's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# What programs look up below /etc and what is no secret of this machine.
HOST_ETC = ("ssl", "ca-certificates", "alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime")
TERMINATION_LIMIT_BYTES = 4096


@dataclass(frozen=True)
class Bind:
    """A folder or file of this machine at a path of the container."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True)
class Bubble:
    """Everything that the command line says about a container."""

    argv: Sequence[str]
    env: Mapping[str, str]
    image_binds: Sequence[Bind]
    etc_files: Mapping[str, Path]
    volume_binds: Sequence[Bind]
    termination: Bind
    hostname: str
    user: int
    group: int
    working_dir: str
    read_only_root: bool


def bubble_argv(bubble: Bubble, info_fd: int) -> list[str]:
    """argv of bwrap, which writes the container's pid as JSON to `info_fd`."""
    return ["bwrap", *_isolation(bubble, info_fd), *_root(bubble), *_ending(bubble), "--", *bubble.argv]


def exec_argv(pid: int, argv: Sequence[str]) -> list[str]:
    """argv that runs a command inside the container whose first process is `pid`, as its user."""
    # The absolute path, since the command's environment has the container's PATH.
    enter = ["/usr/bin/nsenter", "-t", str(pid), "-U", "-m", "-n", "-p", "-i", "-u", "--preserve-credentials"]
    return [*enter, "--", *argv]


def passwd_line(user: int, group: int) -> str:
    """Some programs refuse a user without a name (Python's getpass among them)."""
    return f"user:x:{user}:{group}:user:/tmp:/bin/sh\n"


def _isolation(bubble: Bubble, info_fd: int) -> Iterator[str]:
    yield from ("--unshare-user", "--uid", str(bubble.user), "--gid", str(bubble.group))
    # A signal for bwrap would not reach the program; it goes to the program itself, which is process 1 as in any
    # container.
    yield from ("--unshare-pid", "--as-pid-1", "--info-fd", str(info_fd), "--die-with-parent")
    yield from ("--unshare-ipc", "--unshare-uts", "--hostname", bubble.hostname, "--cap-drop", "ALL", "--clearenv")
    for name, value in bubble.env.items():
        yield from ("--setenv", name, value)


def _root(bubble: Bubble) -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib64"):
        if Path(f"/{name}").is_symlink():
            yield from ("--symlink", f"usr/{name}", f"/{name}")
        elif Path(f"/{name}").is_dir():
            yield from ("--ro-bind", f"/{name}", f"/{name}")
    for folder in ("/etc", "/run", "/var", "/tmp"):
        yield from ("--dir", folder)
    yield from ("--symlink", "/run", "/var/run", "--proc", "/proc", "--dev", "/dev")
    for name in HOST_ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    for name, path in bubble.etc_files.items():
        yield from ("--ro-bind", str(path), f"/etc/{name}")


def _ending(bubble: Bubble) -> Iterator[str]:
    # Parents before children; and a mount at /tmp or /dev/shm only after those were made.
    volumes = sorted((*bubble.volume_binds, bubble.termination), key=lambda bind: bind.target)
    for bind in (*bubble.image_binds, *volumes):
        target = bind.target
        # /var/run is a link, which bwrap does not follow.
        if target.startswith("/var/run/"):
            target = target.removeprefix("/var")
        yield from ("--ro-bind" if bind.read_only else "--bind", bind.source, target)
    if bubble.read_only_root:
        yield from ("--remount-ro", "/")
    yield from ("--chdir", bubble.working_dir)
