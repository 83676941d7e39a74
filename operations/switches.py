"""The run's own switches (`--data KEY=VALUE`), checked: what nobody reads is refused. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from operations.bench_config import MODES
from operations.load import Load
from operations.wanted import Wanted, WantedError

SWITCHES: dict[str, tuple[str, ...]] = {  # --data KEY=VALUE, with the values that it knows
    "only": (),
    "bench": MODES,
    "set": (),
    "preflight": ("text", "json"),
    "verify": ("full",),
    "prune": ("models",),
    "adopt": ("best",),
    "concurrency": (),  # the load to adopt for: requests in flight, and limits in seconds
    "max_ttft": (),
    "max_tpot": (),
    "gate": ("report", "rollback"),
    "rollback": (),
    "probe": ("run",),
}
_LOAD = ("concurrency", "max_ttft", "max_tpot")
# What pyinfra itself reads from a host's data: its connectors' keys and the global arguments.
_PYINFRA = ("_", "ssh_", "winrm_", "docker_", "podman_", "chroot_", "local_", "dockerssh_")
_RELEASE = re.compile(r"previous|[0-9a-f]{12}")


def checked(found: Mapping[str, Any]) -> dict[str, Any]:
    """The switches of a run by name, None where one is not given. Raises WantedError."""
    for key, allowed in SWITCHES.items():
        value = found.get(key)
        if allowed and value is not None and value not in allowed:
            raise WantedError(f"--data {key}: expected {' or '.join(allowed)}, found {value!r}")
    unread = [key for key in _LOAD if found.get(key) is not None]
    if unread and not found.get("adopt"):
        raise WantedError(
            f"--data {unread[0]}: expected adopt=best beside it, found none; what is measured is "
            'changed with --data \'set={"bench": {"concurrency": [1, 8]}}\''
        )
    return {key: found.get(key) for key in SWITCHES} | {"rollback": _release(found)}


def refuse_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuses a `--data` key that nothing reads; `known` are keys of the inventory's own data.

    A mistyped `only` would be a whole deploy otherwise. Raises WantedError.
    """
    for key in given:
        if key in SWITCHES or key == "wanted" or key in known or key.startswith(_PYINFRA):
            continue
        if key in Wanted.model_fields:
            hint = f"settings of wanted are changed with --data 'set={{\"{key}\": ...}}'"
        else:
            near = difflib.get_close_matches(key, SWITCHES, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(SWITCHES)}"
        raise WantedError(f"--data {key}: unknown switch; {hint}")


def load_of(switches: Mapping[str, Any]) -> Load:
    """The load that `adopt=best` is for. Raises WantedError."""
    numbers = {key: switches[key] for key in _LOAD}
    for key, value in numbers.items():
        kinds = int if key == "concurrency" else int | float
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < 1e9:
            what = "a whole number" if key == "concurrency" else "a number of seconds"
            raise WantedError(f"--data {key}: expected {what} above 0, found {value!r}")
    return Load(int(numbers["concurrency"] or 1), numbers["max_ttft"], numbers["max_tpot"])


def check_probe(probe: str | None, engine: str) -> None:
    """Refuses a probe where there is no GPU to measure. Raises WantedError."""
    if probe and engine == "reference":
        raise WantedError(
            "--data probe: expected a host with GPUs for SGLang, found the reference engine; "
            "leave probe out, or --limit the run to GPU hosts"
        )


def _release(found: Mapping[str, Any]) -> str | None:
    """pyinfra reads a fingerprint of digits alone as a number, and "1e2..." as a broken one."""
    value = found.get("rollback")
    if value is None:
        return None
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _RELEASE.fullmatch(text):
        raise WantedError(
            "--data rollback: expected 'previous' or a release's fingerprint (12 hexadecimal "
            f"digits, a folder of PREFIX/releases), found {value!r}"
            + ("; quote it: --data 'rollback=\"...\"'" if isinstance(value, float) else "")
        )
    return text
