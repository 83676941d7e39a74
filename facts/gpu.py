"""Single GPU facts for people at a shell: thin views over the parsers of `facts.nvidia`.

    pyinfra inventories/b300.py fact facts.gpu.ComputeCapability

A host without the tool gives null. A tool that fails makes the fact fail for that host alone, with
the error's name and remedy. A run itself reads `facts.machine.Machine`, which has all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from facts.nvidia import ParseError, views
from facts.nvidia.query import parse_query
from facts.nvidia.xml import parse_xml


class _Tool(FactBase[Any]):
    """A fact that runs `tool arguments` and hands its text to `parse`."""

    abstract = True
    tool: ClassVar[str] = "nvidia-smi"
    arguments: ClassVar[str]

    @staticmethod
    def parse(text: str) -> Any:
        """The fact in the tool's text; raises ParseError."""
        raise NotImplementedError

    def command(self) -> str:
        # Errors come on stdout with exit status 0 to 255; the parser names them, so the status is
        # not needed, and a host without the tool must not fail.
        return (
            f"! command -v {self.tool} >/dev/null || "
            f"timeout -k 2 20 {self.tool} {self.arguments} 2>&1 || true"
        )

    @staticmethod
    def default() -> None:
        """No tool, no fact."""
        return None

    def process(self, output: Iterable[str]) -> Any:
        try:
            return type(self).parse("\n".join(output) + "\n")
        except ParseError as error:
            raise FactProcessError(f"{self.tool}: {error}") from None


def _column(field: str, attribute: str) -> type[_Tool]:
    """A fact of one `--query-gpu` field: `{GPU index: value or None}`."""

    def parse(text: str) -> dict[int | None, Any]:
        return {gpu.index: getattr(gpu, attribute) for gpu in parse_query(text).gpus}

    arguments = f"--query-gpu=index,{field} --format=csv"
    return type("Column", (_Tool,), {"arguments": arguments, "parse": staticmethod(parse)})


class ComputeCapability(_column("compute_cap", "compute_cap")):  # type: ignore[misc]
    """Compute capability of each GPU: `{0: "10.3", 1: "10.3"}`."""


class GpuNames(_column("name", "name")):  # type: ignore[misc]
    """Name of each GPU, in full: `{0: "NVIDIA B300 SXM6 AC"}`."""


class GpuMemory(_column("memory.total", "memory_total_mib")):  # type: ignore[misc]
    """Total memory of each GPU in MiB, null where the driver does not tell: `{0: 275040}`."""


class Driver(_Tool):
    """The driver and the newest CUDA that it runs: `{"driver": "580.159.04", "cuda": "13.0"}`."""

    arguments = "-q -x"

    @staticmethod
    def parse(text: str) -> dict[str, str | None]:
        found = parse_xml(text).versions
        return {"driver": found.driver, "cuda": found.cuda}


class FabricState(_Tool):
    """NVLink fabric of each GPU: `{0: "Completed, Success"}`; null on a card that has none."""

    arguments = "-q -x"

    @staticmethod
    def parse(text: str) -> dict[int | None, str | None]:
        return {
            gpu.index: ", ".join(filter(None, (gpu.fabric_state, gpu.fabric_status))) or None
            for gpu in parse_xml(text).gpus
        }


class NvlinkTopology(_Tool):
    """Connections of the GPUs by `topo -m`: `{"gpus": 8, "pairs": {"NV18": 28}, ...}`."""

    arguments = "topo -m"
    parse = staticmethod(views.topology)


class NvlinkLinks(_Tool):
    """Links by `nvlink -s`: `{"gpus": 8, "links_per_gpu": 18, "active_per_gpu": 18, ...}`."""

    arguments = "nvlink -s"
    parse = staticmethod(views.nvlink)


class FabricManagerVersion(_Tool):
    """Version of nvidia-fabricmanager, which must equal the driver's."""

    tool = "nv-fabricmanager"
    arguments = "--version"

    @staticmethod
    def parse(text: str) -> str:
        found: str = views.fabric_manager(text)["fabric_manager"]
        return found


class CudaToolkit(_Tool):
    """The nvcc of /usr/local/cuda, else the one on PATH: version and the architectures it knows."""

    tool = "nvcc"
    parse = staticmethod(views.nvcc)

    def command(self) -> str:
        return (
            "PATH=/usr/local/cuda/bin:$PATH; "
            "! command -v nvcc >/dev/null || timeout -k 2 20 nvcc --version 2>&1 || true"
        )
