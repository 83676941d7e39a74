"""Clocks, power and temperature of the GPUs at one moment, as nvidia-smi tells them."""

import asyncio
import shutil
import subprocess

QUERY = {
    "index": "index",
    "sm_clock_mhz": "clocks.sm",
    "memory_clock_mhz": "clocks.mem",
    "power_w": "power.draw",
    "temperature_c": "temperature.gpu",
    "memory_used_mib": "memory.used",
}


def parse(text: str) -> list[dict[str, float | None]]:
    """CSV without header and units -> a dictionary a GPU; a value that is no number is None."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(QUERY):
            found.append(dict(zip(QUERY, map(_number, cells), strict=True)))
    return found


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


async def gpu_state() -> list[dict[str, float | None]] | None:
    """None where there is no nvidia-smi or it fails."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY.values())}"]
    command.append("--format=csv,noheader,nounits")
    try:
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse(done.stdout) or None if done.returncode == 0 else None
