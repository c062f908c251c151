# SPDX-License-Identifier: MIT
"""Views of pool memory, without copies: memoryview, NumPy arrays, DLPack."""

import ctypes
import importlib
import operator
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Tuple, Union

from ._native import ffi, lib

if TYPE_CHECKING:
    from .join import Part
    from .layout import Plan
    from .manager import Sequence

# dtype of a layout -> (DLPack code, bits, NumPy's type), the latter by its name in ml_dtypes where NumPy has none.
_DTYPES = {
    "f32": (2, 32, "float32"), "f16": (2, 16, "float16"), "bf16": (4, 16, "bfloat16"), "u8": (1, 8, "uint8"),
    "f8_e4m3": (10, 8, "float8_e4m3fn"), "f8_e5m2": (12, 8, "float8_e5m2"),
}
_ML_DTYPES = ("bf16", "f8_e4m3", "f8_e5m2")
_DLPACK_CPU = (1, 0)


class Place(NamedTuple):
    """Rows of one plane of a sequence that lie in one block: those of tokens [begin, end)."""
    group: int
    layer_index: int
    plane: int
    begin: int
    end: int
    block: int
    is_state: bool


def shape_of(plan: "Plan", group: int, plane: int, rows: int) -> Tuple[Tuple[int, ...], str]:
    """(shape, dtype) of so many rows of a plane; with a scaled plan they are bytes."""
    c = plan._c.layout.groups[group].planes[plane]
    if plan.scale != 1:
        return (rows, plan._c.groups[group].row_bytes[plane]), "u8"
    return (rows, c.heads, c.elems), ffi.string(lib.omnikv_dtype_name(c.dtype)).decode()


class Buffer:
    """Rows of one plane in one block: shape [rows][heads][elems], dense, in host memory.

    ``memory`` is a memoryview of its bytes; ``numpy.asarray(buffer)`` and ``torch.from_dlpack(buffer)`` share them too.
    Rows that others may read already (committed, a cached prefix, shared with a fork) are read-only.

    A Buffer names rows, and looks where they are whenever it is asked: it keeps nothing. Its views do, as ``Sequence`` and
    ``Part`` tell.
    """

    def __init__(self, owner: Union["Sequence", "Part"], place: Place, shape: Tuple[int, ...], dtype: str):
        self._code, self._bits, self._numpy_type = _DTYPES[dtype]
        self._owner, self._place = owner, place
        self.shape, self.dtype = shape, dtype
        self.nbytes = reduce(operator.mul, shape, 1) * self._bits // 8

    @property
    def readonly(self) -> bool:
        return self._owner._is_readonly(self._place.block)

    @property
    def address(self) -> int:
        """Where the first byte lies in this process. A number keeps nothing: hold a view as long as it is used."""
        return self._owner._address(self._place)

    @property
    def memory(self) -> memoryview:
        """The bytes, as a flat memoryview."""
        view = memoryview(ffi.buffer(self._owner._view(self._place), self.nbytes))
        return view.toreadonly() if self.readonly else view

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        """For ``numpy.asarray()``. bf16 and f8 have a NumPy type where ml_dtypes is installed; elsewhere TypeError, since
        floats assigned to a type of the same size would store other bits than theirs."""
        import numpy
        try:
            types = importlib.import_module("ml_dtypes" if self.dtype in _ML_DTYPES else "numpy")
        except ImportError:
            raise TypeError(f"NumPy has no {self.dtype}: install ml_dtypes, take the bits (numpy.frombuffer(rows.memory, "
                            f"numpy.uint{self._bits})), or use torch.from_dlpack(rows)") from None
        # The array holds the memoryview, and no other part of this.
        array = numpy.ndarray(self.shape, getattr(types, self._numpy_type), self.memory)
        if dtype is not None and dtype != array.dtype:
            if copy is False:
                raise ValueError(f"an array of {dtype} over rows of {array.dtype} needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack_device__(self) -> Tuple[int, int]:
        return _DLPACK_CPU

    def __dlpack__(self, *, stream: Any = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """A capsule over the same bytes. BufferError where the consumer's version cannot be told that they are read-only."""
        versioned = max_version is not None and max_version[0] >= 1
        if stream is not None or (dl_device is not None and tuple(dl_device) != _DLPACK_CPU):
            raise BufferError("these bytes are in host memory: stream and device must be None or the CPU's")
        if copy:
            raise BufferError("a Buffer never copies; copy what it shows")
        if self.readonly and not versioned:
            raise BufferError("read-only rows need DLPack 1.0 (max_version); copy them out of .memory instead")
        view = self._owner._view(self._place)
        address = lib.okv_py_dlpack(id(view), view, self._code, self._bits, len(self.shape), list(self.shape), versioned,
                                    self.readonly)
        if not address:
            raise MemoryError("no memory for a DLPack capsule")
        capsule = ctypes.cast(address, ctypes.py_object).value
        # The capsule came with one reference, and .value took another.
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(capsule))
        return capsule

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        state = ", closed" if self._owner.closed else ", read-only" if self.readonly else ""
        return f"Buffer({self.dtype}{list(self.shape)}{state})"


def memory_of(array: Any) -> Tuple[int, int, Any]:
    """(address, bytes, what holds it in place) of an array's dense host memory: a torch tensor, a NumPy array, or any
    writable buffer."""
    if hasattr(array, "data_ptr"):
        if not array.is_contiguous():
            raise ValueError("the tensor is not contiguous")
        if array.device.type != "cpu":
            raise ValueError(f"the tensor is on {array.device}, not in host memory")
        return array.data_ptr(), array.numel() * array.element_size(), array
    view = memoryview(array)
    if view.readonly or not view.c_contiguous:
        raise ValueError("the buffer is read-only or not contiguous")
    held = ffi.from_buffer("char[]", view, require_writable=True)
    return int(ffi.cast("uintptr_t", held)), view.nbytes, held
