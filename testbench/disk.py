"""File systems on loop devices that can fill up, become read-only, fail, or lose what was not synced.

Zone: real. Needs root and a kernel with loop devices; a VolumeError names what is missing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

FS_IOC_SHUTDOWN = 0x8004587D
"""_IOR('X', 125, __u32), of ext4 and xfs: the file system stops at once."""
NO_LOG_FLUSH = 2
"""Its journal is not written either: data that was not synced is lost, as after a power cut."""
BALLAST = ".ballast"
SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class VolumeError(Exception):
    """No file system can be created here; the message has the reason."""


class Volume:
    """An ext4 or xfs in a file. `path` is where it is mounted."""

    def __init__(self, directory: Path, kind: str, mib: int) -> None:
        self.path = directory / "mnt"
        self._image = directory / "image"
        if os.geteuid() != 0:
            raise VolumeError("mounting needs root: run these tests as root, or leave them out with -m 'not root'")
        make = shutil.which(f"mkfs.{kind}", path=SBIN)
        if make is None:
            package = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}[kind]
            raise VolumeError(f"mkfs.{kind} is missing: run testbench/setup (Debian: apt-get install {package})")
        self.path.mkdir(parents=True)
        with self._image.open("wb") as file:
            file.truncate(mib << 20)
        self._run(make, *(("-q", "-F") if kind == "ext4" else ("-q", "-f")), str(self._image))
        self._mount()

    def _mount(self) -> None:
        self._run("mount", "-o", "loop", str(self._image), str(self.path))

    @staticmethod
    def _run(*command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise VolumeError(f"{' '.join(command)}: {done.stderr.strip()} (loop devices, ext4 and xfs are needed)")

    @property
    def free(self) -> int:
        """Bytes that can still be written."""
        state = os.statvfs(self.path)
        return state.f_bavail * state.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Fill the file system except `leave` bytes."""
        with (self.path / BALLAST).open("wb") as file:
            size = self.free - leave
            while size > 0:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), min(size, 1 << 20))
                    file.seek(0, os.SEEK_END)
                except OSError:
                    return
                size -= 1 << 20

    def drain(self) -> None:
        """Free the space again."""
        (self.path / BALLAST).unlink()

    def turn_read_only(self) -> None:
        """Become read-only like ext4 after an error: writes fail with EROFS, also through open files."""
        self._run("mount", "-o", "remount,errors=remount-ro", str(self.path))  # a plain ro is refused: files are open
        (device,) = [line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if self._is_mine(line)]
        trigger = Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error"
        try:
            trigger.write_text("made read-only by a test")
        except OSError as error:
            raise VolumeError(f"{trigger}: {error.strerror}; ext4 and sysfs are needed") from None

    def _is_mine(self, line: str) -> bool:
        return line.split()[1] == str(self.path)

    def die(self) -> None:
        """Let everything fail with EIO from now on; data that was not synced does not reach the image."""
        root = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(root, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(root)

    def come_back(self) -> None:
        """After `die`, when no process uses it: mount the data that reached the disk."""
        self._unmount()
        self._mount()

    def _unmount(self) -> None:
        deadline = time.monotonic() + 180
        while True:
            done = subprocess.run(["umount", str(self.path)], capture_output=True, text=True, check=False)
            if done.returncode == 0 or "not mounted" in done.stderr:
                return
            if time.monotonic() > deadline:
                raise VolumeError(f"umount: {done.stderr.strip()}")
            time.sleep(0.05)

    def remove(self) -> None:
        """Unmount and forget."""
        self._unmount()
        self._image.unlink(missing_ok=True)
