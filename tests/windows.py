"""Run bertkit as if on Windows, as far as Linux can pretend it: `python -m tests.windows finetune cola --smoke-test`.

The modules of bertkit get an `os`, a `signal` and a `sys` without what Windows lacks, no `fcntl` and no `/proc`; and
files raise the errors that they would raise there. Not pretended: paths with backslashes, the console, what other
processes have open, and the libraries, which have releases for Windows.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import re
import signal
import sys
import warnings
from pathlib import Path
from types import ModuleType

PACKAGE = str(Path(__file__).parents[1] / "bertkit")
LACKING = {
    *("fork", "pread", "pwrite", "sched_getaffinity", "statvfs", "getloadavg", "geteuid", "getuid", "killpg", "setsid"),
    *("uname", "register_at_fork", "nice", "mkfifo", "O_DIRECTORY", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL"),
    *("SIGALRM", "SIGCHLD", "SIGQUIT", "SIGPIPE", "pthread_kill"),
}
FORBIDDEN = re.compile(r'[<>:"|?*\x00-\x1f]|[. ]$')
"""Characters that names of files cannot have, and endings that are dropped."""
HELPERS = re.compile(r"/(pathlib|shutil|tempfile|contextlib|tests/windows|_local)(\.py|/)")


class Pretended(ModuleType):
    """A module whose attributes are those of another, except for some."""

    def __init__(self, real: ModuleType, **values: object) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(_real=real, _values=values)

    def __getattr__(self, name: str) -> object:
        if name in LACKING:
            raise AttributeError(name)
        return self._values[name] if name in self._values else getattr(self._real, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._real, name, value)


def kill(process: int, signum: int) -> None:
    """End the process without a handler, as Windows does for nearly all signals."""
    os._exit(signum)


MODULES = {
    "os": Pretended(os, name="nt", kill=kill),
    "signal": Pretended(signal, SIGBREAK=signal.SIGQUIT),
    "sys": Pretended(sys, platform="win32"),
}


def import_module(name, globals=None, locals=None, fromlist=(), level=0, _import=builtins.__import__):
    """Import a module; those of bertkit get what Windows has."""
    if globals and globals.get("__name__", "").startswith("bertkit."):
        if name in ("fcntl", "resource", "pwd", "grp", "termios"):
            raise ImportError(name)
        if name in MODULES:
            return MODULES[name]
    return _import(name, globals, locals, fromlist, level)


def is_used(path: str) -> bool:
    """Return whether this process has a file open or mapped, or one below a folder: Windows does not move it."""
    real, files = os.path.realpath(path), []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            files.append(str(entry.readlink()))
        except OSError:  # the descriptor of the listing itself
            continue
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").split("\n")
    files += [line.split(maxsplit=5)[5] for line in maps if "/" in line]
    return any(file == real or file.startswith(f"{real}/") for file in files)


def check_move(event: str, arguments: tuple) -> None:
    """Raise an error if a file that is renamed, replaced or deleted is in use."""
    frame = sys._getframe(2)
    for path in map(os.fspath, arguments[:2] if event == "os.rename" else arguments[:1]):
        place = f"/proc/self/fd/{arguments[-1]}/{path}" if arguments[-1] >= 0 else path
        # A file of `tempfile` without a name is deleted when it is closed, on Windows too.
        if "tempfile" not in frame.f_code.co_filename and is_used(place):
            raise PermissionError(errno.EACCES, "pretended: a file is in use", path)
    if event == "os.rename" and frame.f_code.co_name == "rename" and os.path.lexists(arguments[1]):
        raise FileExistsError(errno.EEXIST, "pretended: a rename does not replace", os.fspath(arguments[1]))


def check_name(path: str | os.PathLike | int) -> None:
    """Raise an error if a new file cannot have its name."""
    if not isinstance(path, int) and FORBIDDEN.search(Path(os.fsdecode(path)).name):
        raise OSError(errno.EINVAL, "pretended: a file cannot have this name", path)


def is_from_bertkit() -> bool:
    """Return whether bertkit has called a function of this module, directly or through pathlib."""
    frame = sys._getframe(2)
    while frame.f_back and HELPERS.search(frame.f_code.co_filename):
        if frame.f_code.co_name == "is_used":
            return False
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(PACKAGE)


def check_place(path: object) -> None:
    """Raise an error if bertkit reads a file of the system that Windows does not have."""
    if isinstance(path, (str, Path)) and str(path).startswith(("/proc/", "/sys/", "/dev/")) and is_from_bertkit():
        raise FileNotFoundError(errno.ENOENT, "pretended: no such file", path)


def stat(path, *args, _stat=os.stat, **options) -> os.stat_result:
    """Return the state of a file."""
    check_place(path)
    return _stat(path, *args, **options)


def check_open(path: str | os.PathLike | int, flags: int) -> None:
    """Raise an error if bertkit opens a file that Windows does not have, or a folder."""
    if flags & os.O_CREAT:
        check_name(path)
    if path != os.devnull:
        check_place(path)
    if isinstance(path, str) and sys._getframe(2).f_code.co_filename.startswith(PACKAGE) and os.path.isdir(path):  # noqa: PTH112
        raise PermissionError(errno.EACCES, "pretended: a folder cannot be opened", path)


def audit(event: str, arguments: tuple) -> None:
    """Raise the errors of Windows."""
    if event in ("os.rename", "os.remove"):
        check_move(event, arguments)
    elif event == "os.mkdir":
        check_name(arguments[0])
    elif event == "open":
        check_open(arguments[0], arguments[2])


def fsync(descriptor: int, _fsync=os.fsync) -> None:
    """Flush a file that is open for writing."""
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "pretended: the file is not open for writing")
    _fsync(descriptor)


def pretend() -> None:
    """Change this process for good."""
    builtins.__import__ = import_module
    os.fsync, os.stat = fsync, stat
    warnings.filterwarnings("error", category=EncodingWarning, module=r"bertkit\.")
    sys.addaudithook(audit)


if __name__ == "__main__":
    pretend()
    from bertkit.cli.main import main

    main()
