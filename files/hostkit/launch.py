"""The launch file: everything that starting one engine takes, written by the plan."""

import hashlib
import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin

from .errors import HostkitError


@dataclass(frozen=True)
class Launch:
    """One engine process: its command, its environment and the limits it must keep.

    Times are seconds. `budget` is the draft tree's node budget that is set at run time on a DDTREE
    engine, None leaves the engine's own. `algorithm` is None for autoregressive decoding.
    `service_env` is the text of the service.env beside a launch.json: what the service manager
    gives to supervise, and supervise hands on.
    """

    fingerprint: str
    arm: str
    argv: list[str]
    port: int
    run_dir: str
    env: dict[str, str]
    cwd: str | None = None
    host: str = "127.0.0.1"
    start_timeout_s: float = 600.0
    stop_timeout_s: float = 30.0
    health_interval_s: float = 10.0
    hang_timeout_s: float = 120.0
    speculative: bool = False
    algorithm: str | None = None
    budget: int | None = None
    restart_limit: int = 3
    restart_window_s: float = 600.0
    restart_delay_s: float = 2.0
    metrics_port: int | None = None
    log_limit_bytes: int = 64 * 2**20
    service_env: str = ""

    @property
    def url(self) -> str:
        """Where this host reaches the engine, also when it listens on every address."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"

    @property
    def flags(self) -> str:
        """Names what the engine runs with: command line, environment, budget; 12 hex digits."""
        parts = [self.argv, self.env, self.budget, self.service_env]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def log(self) -> Path:
        return Path(self.run_dir) / "engine.log"

    @classmethod
    def from_json(cls, data: Mapping[str, Any], source: str = "launch") -> "Launch":
        """Raises HostkitError for a missing key, an unknown key or a value of another type."""
        known = {field.name: field for field in fields(cls)}
        unknown = sorted(set(data) - set(known))
        if unknown:
            raise HostkitError(
                f"{source}: unknown key {unknown[0]!r}; known keys: {', '.join(known)}"
            )
        required = [name for name, field in known.items() if field.default is MISSING]
        missing = [name for name in required if name not in data]
        if missing:
            raise HostkitError(f"{source}: key {missing[0]!r} is missing; required: {required}")
        for name, value in data.items():
            check_type(source, name, value, cls.__annotations__[name])
        if not data["argv"]:
            raise HostkitError(f"{source}: argv is empty; expected the engine's command line")
        return cls(**data)


def check_type(source: str, name: str, value: Any, wanted: Any) -> None:
    """Raises HostkitError when `value` doesn't fit an annotation: scalars, unions, list, dict."""
    alternatives = get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if not any(_fits(value, kind) for kind in alternatives):
        shown = str(wanted).removeprefix("<class '").removesuffix("'>")
        raise HostkitError(f"{source}: key {name!r} expected {shown}, found {value!r}")


def _fits(value: Any, kind: Any) -> bool:
    plain: Any = get_origin(kind) or kind
    if isinstance(value, bool) and plain is not bool:
        return False
    if not isinstance(value, (int, float) if plain is float else plain):
        return False
    inner = get_args(kind)
    if isinstance(value, list) and inner:
        return all(_fits(item, inner[0]) for item in value)
    if isinstance(value, dict) and inner:
        return all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    return True


def read_json(path: Path) -> dict[str, Any]:
    """Reads one JSON object; raises HostkitError naming the file and what is wrong with it."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise HostkitError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise HostkitError(f"{path}: expected JSON ({error})") from error
    if not isinstance(data, dict):
        raise HostkitError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


def read_launch(path: Path) -> Launch:
    """The launch of a launch.json, with the service.env beside it where there is one."""
    launch = Launch.from_json(read_json(path), str(path))
    beside = path.with_name("service.env")
    return replace(launch, service_env=beside.read_text()) if beside.exists() else launch
