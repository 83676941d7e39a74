"""What NVIDIA's tools say, read into frozen dataclasses: pure parsers, no pyinfra import.

`nvidia-smi --query-gpu` CSV and `-q -x` XML, its table and `-q` text, `topo -m`, `nvlink -s`,
`nvcc --version`, version files, and the errors that these tools print instead. The rules that
hold in all of them: a value that is missing, `[N/A]`, or a sentence is None (unknown is not
zero); text that is cut is refused, never counted; an error on stdout is named.

    python -m facts.nvidia topo topo_m.txt
"""

from facts.nvidia.driver import DriverModule, Versions
from facts.nvidia.gpus import Gpu, GpuProcess
from facts.nvidia.nvlink import NvlinkGpu, NvlinkStatus
from facts.nvidia.toolkit import Nvcc, Toolkit
from facts.nvidia.topology import Topology
from facts.nvidia.values import ParseError

__all__ = [
    "DriverModule",
    "Gpu",
    "GpuProcess",
    "Nvcc",
    "NvlinkGpu",
    "NvlinkStatus",
    "ParseError",
    "Toolkit",
    "Topology",
    "Versions",
]
