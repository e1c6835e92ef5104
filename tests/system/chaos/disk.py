"""A disk that fills up, for the Spark job's checkpoint.

With the right to mount it is a small tmpfs in a mount namespace of this process, which ends with it, filled to the
last byte. Without, the checkpoint's folders are made read-only: another error, the same operation that fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from pathlib import Path

_BYTES = 96 << 20
_CLONE_NEWNS = 0x0002_0000
_MS_REC_PRIVATE = 0x4000 | 0x4_0000
_CHUNK = bytes(1 << 16)


class Disk:
    """The place of the checkpoint. Make it before any thread or child is started: they share its mounts."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()
        self.kind = "full tmpfs" if _mount(place) else "read-only folders"

    def fill(self) -> None:
        """From now on nothing can be written there."""
        if self.kind == "read-only folders":
            self._mode(0o555)
            return
        with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as filler:
            while True:
                filler.write(_CHUNK)
        assert shutil.disk_usage(self.place).free < len(_CHUNK), "the disk is not full"

    def free(self) -> None:
        """There is room again."""
        if self.kind == "read-only folders":
            self._mode(0o755)
        else:
            self._filler.unlink(missing_ok=True)

    def keep(self) -> None:
        """What a tmpfs holds moves to where it outlives this process."""
        if self.kind != "read-only folders":
            shutil.copytree(self.place, self.place.with_name(f"{self.place.name}-kept"), dirs_exist_ok=True)

    def close(self) -> None:
        """Unmounts it, so that its folder can be removed."""
        if self.kind != "read-only folders":
            _checked(_LIBC.umount2(os.fsencode(self.place), 2))  # 2 is MNT_DETACH

    @property
    def _filler(self) -> Path:
        return self.place / "filler"

    def _mode(self, mode: int) -> None:
        for folder in [self.place, *(path for path in self.place.rglob("*") if path.is_dir())]:
            folder.chmod(mode)


_LIBC = ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _mount(place: Path) -> bool:
    try:
        _checked(_LIBC.unshare(_CLONE_NEWNS))
        _checked(_LIBC.mount(b"none", b"/", None, _MS_REC_PRIVATE, None))
        _checked(_LIBC.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, f"size={_BYTES}".encode()))
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            raise
        return False
    return True
