"""`nvidia-smi nvlink -s`: the links of each GPU and their speed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NvlinkGpu:
    """The NVLinks of one GPU: `links[i]` is GB/s a direction, None where link i is inactive.

    `links` is None where it is unknown ("MIG mode") and empty where the GPU says that no link is
    active ("all links inActive"); `reason` says which.
    """

    index: int
    name: str | None
    links: tuple[float | None, ...] | None
    reason: str | None = None

    @property
    def active(self) -> int | None:
        """Number of active links, None if unknown."""
        return None if self.links is None else sum(speed is not None for speed in self.links)

    @property
    def inactive(self) -> tuple[int, ...]:
        """Indexes of the links that are there and inactive."""
        return tuple(i for i, speed in enumerate(self.links or ()) if speed is None)


@dataclass(frozen=True)
class NvlinkStatus:
    """What `nvidia-smi nvlink -s` lists, a GPU each. No GPU listed: this host has no NVLink."""

    gpus: tuple[NvlinkGpu, ...] = ()
