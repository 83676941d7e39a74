"""Reads a GGUF file: metadata, and tensors as fp32.

The header is parsed here, because `gguf.GGUFReader` takes seconds over a vocabulary (a numpy view
per string); type numbers, block sizes and dequantisation are the `gguf` package's.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize

from .errors import RefserverError

Array = np.ndarray[Any, np.dtype[np.float32]]

_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
_PLAIN = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]  # row-major: [out, in]
    kind: GGMLQuantizationType
    start: int


class GgufFile:
    """An open GGUF file. `fields` is its metadata; `read(name)` gives a tensor.

    Raises RefserverError when the file is not a little-endian GGUF of version 2 or 3.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        magic, version = self._bytes[:4], self._unpack("4sI")[1]
        if magic != b"GGUF" or version not in (2, 3):
            raise RefserverError(
                f"expected a GGUF file of version 2 or 3, found magic {magic!r}, version "
                f"{version} in {path}"
            )
        try:
            self._read_header()
        except (struct.error, ValueError, IndexError) as error:
            raise RefserverError(f"expected a whole GGUF file, found {error} in {path}") from None

    def _read_header(self) -> None:
        tensor_count, field_count = self._unpack("QQ")
        self.fields: dict[str, Any] = {}
        for _ in range(field_count):
            name = self._string()
            self.fields[name] = self._value(self._unpack("I")[0])
        raw: list[tuple[str, tuple[int, ...], int, int]] = []
        for _ in range(tensor_count):
            name = self._string()
            (rank,) = self._unpack("I")
            shape = self._unpack(f"{rank}Q")
            kind, offset = self._unpack("IQ")
            raw.append((name, tuple(reversed(shape)), kind, offset))
        align = self.fields.get("general.alignment", 32)
        data = (self._at + align - 1) // align * align
        self._tensors = {
            name: _Tensor(shape, GGMLQuantizationType(kind), data + offset)
            for name, shape, kind, offset in raw
        }

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self._bytes, self._at)
        self._at += struct.calcsize("<" + layout)
        return values

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        start = self._at
        self._at += length
        return self._bytes[start : self._at].decode()

    def _value(self, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self._string()
        if kind == GGUFValueType.ARRAY:
            item, count = self._unpack("IQ")
            if item in _SCALARS:
                return list(self._unpack(f"{count}{_SCALARS[GGUFValueType(item)]}"))
            return [self._value(item) for _ in range(count)]
        return self._unpack(_SCALARS[GGUFValueType(kind)])[0]

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def read(self, name: str) -> Array:
        """Tensor `name` dequantised to fp32, row-major ([out, in] for a matrix)."""
        if name not in self._tensors:
            raise RefserverError(f"expected tensor {name} in {self.path}, found none of that name")
        tensor = self._tensors[name]
        block, block_bytes = GGML_QUANT_SIZES[tensor.kind]
        count = int(np.prod(tensor.shape))
        size = count // block * block_bytes
        if tensor.start + size > len(self._bytes):
            raise RefserverError(f"expected a whole GGUF file, found {self.path} cut short")
        raw = np.frombuffer(self._bytes, np.uint8, size, tensor.start)
        if tensor.kind in _PLAIN:
            return raw.view(_PLAIN[tensor.kind]).astype(np.float32).reshape(tensor.shape)
        rows = raw.reshape(*tensor.shape[:-1], tensor.shape[-1] // block * block_bytes)
        try:
            values: Array = dequantize(rows, tensor.kind)
        except NotImplementedError:
            raise RefserverError(
                f"expected a quantisation that gguf can read, found {tensor.kind.name} in {name}"
            ) from None
        return values.reshape(tensor.shape)
