"""The load that a service is chosen for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """What the user asks for: requests in flight, and the limit that 9 of 10 requests keep.

    Times in seconds, None: no limit. TPOT is the time per output token of one user.
    """

    concurrency: int = 1
    max_ttft_s: float | None = None
    max_tpot_s: float | None = None
