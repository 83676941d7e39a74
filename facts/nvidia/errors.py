"""What nvidia-smi prints instead of an answer, mostly on stdout: named, with a remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from facts.nvidia.values import ParseError, plain


@dataclass(frozen=True)
class _Kind:
    """An error: name, the text that gives it away (blanks squeezed), meaning, remedy."""

    error: str
    pattern: str
    meaning: str
    remedy: str
    exit: int | None = None  # nvidia-smi's exit status by its manual page, where it is certain


# Order matters: the first that matches names the error.
_KINDS = (
    _Kind(
        "driver/library mismatch",
        r"Driver/library version mismatch(?:.*?NVML library version: (?P<library>\d[\d.]*\d))?",
        "the loaded kernel module is of another version than the user-space libraries",
        "reboot, or unload and load the nvidia modules; don't reinstall",
    ),
    _Kind(
        "no driver communication",
        r"NVIDIA-SMI has failed because it couldn.{1,3}t communicate with the NVIDIA driver",
        "no NVIDIA kernel module is loaded",
        "load it (modprobe nvidia); after a kernel upgrade rebuild it (dkms status), then reboot",
        9,
    ),
    _Kind(
        "NVML library not found",
        r"couldn.{1,3}t find (?P<library>libnvidia-ml\.so|nvml)|NVML Shared Library Not Found",
        "nvidia-smi is there, the driver's libraries are not",
        "install the driver's compute libraries of the same version",
        12,
    ),
    _Kind(
        "NVML not initialised",
        r"Failed to initialize NVML: (?P<reason>[A-Z][A-Za-z ]*)",
        "the driver answers, NVML does not start (in a container often: devices taken away)",
        "check /dev/nvidia*, the container's device list and the kernel log (dmesg | grep NVRM)",
    ),
    _Kind(
        "field not supported",
        r'Field "(?P<field>[^"]+)" is not a valid field to query',
        "this driver does not know one of the fields, and then answers none of them",
        "ask again without the field",
        2,
    ),
    _Kind(
        "no devices",
        r"No devices were found",
        "the driver is loaded and sees no usable GPU",
        "check lspci -d 10de: and the kernel log (dmesg | grep -e NVRM -e Xid)",
        6,
    ),
    _Kind(
        "GPU lost",
        r"Unable to determine the device handle for",
        "a GPU does not answer any more (fallen off the bus, or needs a reset)",
        "drain the host, look for Xid 79 in the kernel log, reset the GPU or reboot",
    ),
    _Kind(
        "bad arguments",
        r"command line argument must be used|Invalid combination of input arguments"
        r"|Invalid argument|Option \S+ is not recognized",
        "nvidia-smi refused its arguments",
        "use the invocation that this tool documents",
        2,
    ),
    _Kind(
        "blocked by the operating system",
        r"GPU access blocked by the operating system",
        "the operating system denies access to the GPU",
        "check the permissions of /dev/nvidia* and the container runtime",
        17,
    ),
    _Kind(
        "command not found",
        r"(?:command not found|Command '(?P<command>[^']+)' not found|: not found|No such file or)",
        "the tool is not installed, or not on this PATH",
        "don't install what the shell suggests: distribution packages are often too old",
        127,
    ),
)
_LOST = re.compile(
    r"Unable to determine the device handle for (GPU\S*?):? (?:GPU )?([0-9A-Fa-f.:]+):"
)


def find_error(text: str) -> dict[str, Any] | None:
    """`{"error", "meaning", "remedy", ...}` if the text holds a known error message, else None.

    `stream` and `exit` say where and how nvidia-smi itself reports it, if that is certain.
    """
    squeezed = " ".join(plain(text).split())
    for kind in _KINDS:
        match = re.search(kind.pattern, squeezed)
        if match is None:
            continue
        found: dict[str, Any] = {k: v.strip() for k, v in match.groupdict().items() if v}
        if kind.error == "GPU lost":
            found["lost"] = lost_gpus(text)
        source = {} if kind.exit is None else {"exit": kind.exit, "stream": "stdout"}
        return {
            "error": kind.error,
            **found,
            **source,
            "meaning": kind.meaning,
            "remedy": kind.remedy,
        }
    return None


def lost_gpus(text: str) -> list[str]:
    """GPUs that nvidia-smi can't reach, as it names them: `["GPU1 0000:34:00.0"]`."""
    squeezed = " ".join(plain(text).split())
    return list(dict.fromkeys(f"{name} {bus}" for name, bus in _LOST.findall(squeezed)))


def refuse_errors(text: str) -> None:
    """Raise the ParseError that the text's error message names; return if there is none."""
    found = find_error(text)
    if found:
        raise ParseError(found.pop("error"), **found)
