"""`nvidia-smi topo -m`: how each pair of GPUs is connected."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True)
class Topology:
    """The matrix of `nvidia-smi topo -m`.

    `links[i][j]` is the connection of GPU i and GPU j as printed ("NV18", "PIX", "PXB", "PHB",
    "NODE", "SYS"; "X" on the diagonal). It says nothing about whether peer-to-peer copies work.
    """

    links: tuple[tuple[str, ...], ...]
    cpu_affinity: tuple[str | None, ...]  # "0-63,128-191" a GPU
    numa: tuple[int | None, ...] | None  # NUMA node a GPU; None if there is no such column
    nics: tuple[str, ...] = ()  # device names by the legend ("mlx5_10"), else the column names
    nic_names_known: bool = True  # False: the legend was missing, `nics` are "NIC0", ...
    nic_rows: int = (
        0  # NIC rows read; fewer than len(nics): the output was cut, GPU facts still hold
    )
    near: tuple[str | None, ...] = ()  # column name of the nearest NIC a GPU, None if not unique

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return len(self.links)

    @property
    def pairs(self) -> dict[str, int]:
        """Unordered GPU pairs a kind of connection, `{"NV18": 28}`."""
        return dict(Counter(self.links[i][j] for i, j in combinations(range(self.gpus), 2)))

    @property
    def all_nvlink(self) -> bool | None:
        """Whether each pair is NVLink; None for a single GPU, which has no pairs."""
        pairs = self.pairs
        return all(kind.startswith("NV") for kind in pairs) if pairs else None

    @property
    def islands(self) -> tuple[tuple[int, ...], ...]:
        """Sets of GPUs that are connected by NVLink, single GPUs included, by lowest index."""
        left = set(range(self.gpus))
        found = []
        while left:
            island, todo = set(), [min(left)]
            while todo:
                gpu = todo.pop()
                island.add(gpu)
                todo += [
                    other
                    for other in left - island
                    if self.links[gpu][other].startswith("NV") and other not in todo
                ]
            left -= island
            found.append(tuple(sorted(island)))
        return tuple(found)
