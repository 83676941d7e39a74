"""Reads safetensors checkpoints as fp32: F32, F16, BF16, and I8 with a `.scale` per output row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from .errors import RefserverError

Array = np.ndarray[Any, np.dtype[np.float32]]


def read_checkpoint(folder: Path) -> dict[str, Array]:
    """All tensors of model.safetensors, or of the shards that model.safetensors.index.json names.

    An I8 matrix X.weight is multiplied by its X.scale (fp32, one a row). Raises RefserverError
    when a file is missing or damaged, or a dtype is none of the four.
    """
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.is_file():
        names = set(json.loads(index.read_text())["weight_map"].values())
    raw: dict[str, Array] = {}
    for name in sorted(names):
        raw |= _read_file(folder / name)
    return {
        name: value * raw[_scale(name)][:, None] if _scale(name) in raw else value
        for name, value in raw.items()
        if not name.endswith(".scale")
    }


def _scale(name: str) -> str:
    return name.removesuffix(".weight") + ".scale"


def _read_file(path: Path) -> dict[str, Array]:
    if not path.is_file():
        raise RefserverError(f"expected weights in {path}, found no such file")
    try:
        entries = safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise RefserverError(
            f"expected a whole safetensors file, found {error} in {path}"
        ) from None
    return {name: _to_fp32(name, entry) for name, entry in entries}


def _to_fp32(name: str, entry: dict[str, Any]) -> Array:
    data, dtype = entry["data"], entry["dtype"]
    if dtype == "BF16":
        bits = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        values = bits.view(np.float32)
    elif dtype in ("F32", "F16", "I8"):
        kind = {"F32": np.float32, "F16": np.float16, "I8": np.int8}[dtype]
        values = np.frombuffer(data, kind).astype(np.float32)
    else:
        raise RefserverError(f"expected F32, F16, BF16 or I8 weights, found {dtype} in {name}")
    return values.reshape(entry["shape"])
