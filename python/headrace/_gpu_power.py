"""The power limit of a GPU by NVML, NVIDIA's library of its driver, opened when it is asked for. The limit is the board's, so it holds for
every process on it, and only an administrator may set it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from ._hardware_change import UNAVAILABLE, Change, refused, switched

_NAME, _REQUESTED = "power_mode", "high"
_LIBRARY = "libnvidia-ml.so.1"
_NO_PERMISSION, _GRAPHICS_CLOCK = 4, 0  # Of nvml.h: NVML_ERROR_NO_PERMISSION, NVML_CLOCK_GRAPHICS.


class _NvmlError(Exception):
    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class _Board:
    """One board. Watts and MHz; `library` has the functions of nvml.h that are named here."""

    def __init__(self, library: Any, uuid: str) -> None:
        self._library = library
        self._device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}".encode(), ctypes.byref(self._device))

    def limits_w(self) -> tuple[float, float]:
        """In force, and the highest that the board takes."""
        lowest, highest = ctypes.c_uint(), ctypes.c_uint()
        self._call("nvmlDeviceGetPowerManagementLimitConstraints", self._device, ctypes.byref(lowest), ctypes.byref(highest))
        return self._number("nvmlDeviceGetPowerManagementLimit") / 1000, highest.value / 1000

    def set_limit_w(self, watts: float) -> None:
        self._call("nvmlDeviceSetPowerManagementLimit", self._device, ctypes.c_uint(round(1000 * watts)))

    def clock_mhz(self) -> str:
        """Of the graphics clock now, and the highest."""
        with contextlib.suppress(_NvmlError):
            kind = ctypes.c_uint(_GRAPHICS_CLOCK)
            return f"{self._number('nvmlDeviceGetClockInfo', kind)} of {self._number('nvmlDeviceGetMaxClockInfo', kind)} MHz"
        return UNAVAILABLE

    def _number(self, function: str, *given: Any) -> int:
        found = ctypes.c_uint()
        self._call(function, self._device, *given, ctypes.byref(found))
        return found.value

    def _call(self, function: str, *given: Any) -> None:
        _checked(self._library, getattr(self._library, function)(*given))


def _checked(library: Any, code: int) -> None:
    if code != 0:
        library.nvmlErrorString.restype = ctypes.c_char_p
        raise _NvmlError(code, library.nvmlErrorString(code).decode())


@contextlib.contextmanager
def _board(library: Any, uuid: str) -> Iterator[_Board]:
    _checked(library, library.nvmlInit_v2())
    try:
        yield _Board(library, uuid)
    finally:
        library.nvmlShutdown()


def highest_power_limit(uuid: str, library: Any = None) -> Change:
    """Sets the limit of the board to the highest that it takes, where this process may and it is lower. uuid: as torch.cuda has it in a
    device's properties. library: None: that of the driver. The setting's reason has the graphics clock."""
    try:
        nvml = ctypes.CDLL(_LIBRARY) if library is None else library
    except OSError:
        return refused(_NAME, _REQUESTED, UNAVAILABLE, f"no NVML ({_LIBRARY})")

    def read() -> str:
        with _board(nvml, uuid) as board:
            return f"{board.limits_w()[0]:g} W"

    def write(watts: float) -> None:
        with _board(nvml, uuid) as board:
            board.set_limit_w(watts)

    try:
        with _board(nvml, uuid) as board:
            in_force, highest = board.limits_w()
            clock = f"graphics clock {board.clock_mhz()}"
    except _NvmlError as error:
        return refused(_NAME, _REQUESTED, UNAVAILABLE, str(error))
    limit = f"{in_force:g} W"
    if in_force >= highest:
        return refused(_NAME, _REQUESTED, limit, f"the limit is the board's highest already; {clock}")
    try:
        return switched(_NAME, f"{highest:g} W", read, lambda: write(highest), lambda: write(in_force), reason=clock)
    except _NvmlError as error:
        reason = f"not permitted: {error}" if error.code == _NO_PERMISSION else str(error)
        return refused(_NAME, _REQUESTED, limit, f"{reason}; {clock}")
