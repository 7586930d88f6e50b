"""Only regular files are opened: a pipe does not block, and a device is not read."""

import errno
import os
import socket
from pathlib import Path

import pytest

from vitreous.errors import SystemFaultError, VitreousError
from vitreous.utils.regular_files import is_system_fault, open_regular, read_regular, system_fault


def test_a_regular_file_is_read_completely(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"glass")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert read_regular(tmp_path / "a") == read_regular(str(tmp_path / "link"), max_bytes=5) == b"glass"
    with open_regular(tmp_path / "a") as file:
        assert not os.get_inheritable(file.fileno())


def test_other_files_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "to the fifo").symlink_to(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        kinds = {"fifo": "FIFO", "to the fifo": "FIFO", "zero": "device", "socket": "socket", ".": "folder"}
        for name, kind in kinds.items():
            with pytest.raises(VitreousError, match=kind):
                open_regular(tmp_path / name)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for name in kinds:
        with pytest.raises(VitreousError):
            open_regular(tmp_path / name)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(VitreousError, match=r"1,099,511,627,776 bytes, and the limit is 1,000"):
        read_regular(tmp_path / "sparse", max_bytes=1000)


def test_system_errors_are_distinguished_from_file_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        open_regular(tmp_path / "none")
    assert not is_system_fault(missing.value)
    for number in (errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM, errno.ESTALE):
        error = OSError(number, os.strerror(number))
        assert is_system_fault(error)
        fault = system_fault(error, "x.jpg")
        assert isinstance(fault, SystemFaultError)
        assert isinstance(fault, VitreousError)
        assert str(fault).startswith("x.jpg: cannot be read: ")
        assert "\n" not in str(fault)
    assert not is_system_fault(OSError("image file is truncated"))  # of a library
    assert is_system_fault(MemoryError())
