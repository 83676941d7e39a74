"""A download as a job on a host: its file, its unit, its command line, its progress. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from facts.models import ModelState
from operations import job as detached
from operations.model_source import Kind, ModelSource

UNIT = "/etc/systemd/system/model-fetch@.service"
TEMPLATES = Path(__file__).resolve().parent.parent / "templates"


def jobs_dir(prefix: PurePosixPath) -> PurePosixPath:
    """Where job files, status files and tokens (0600) of downloads lie on a host."""
    return prefix / "models" / ".jobs"


def status_path(source: ModelSource, prefix: PurePosixPath) -> PurePosixPath:
    """The file that the fetcher keeps writing its progress to."""
    return jobs_dir(prefix) / f"{source.key}.status.json"


def log_path(source: ModelSource, prefix: PurePosixPath) -> PurePosixPath:
    """Where a detached fetcher's output goes; under systemd it goes to the journal."""
    return prefix / "run" / "jobs" / f"model-{source.key}.log"


def unit_name(key: str) -> str:
    """The unit's instance for one model."""
    return f"model-fetch@{key}.service"


def document(
    source: ModelSource,
    prefix: PurePosixPath,
    uv: str,
    full: bool = False,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The job file of one download, as `hostkit fetch --job` reads it. No secrets in it."""
    return {
        "key": source.key,
        "source": str(source),
        "kind": "pypi" if source.kind is Kind.PYPI else "hub",
        "repo": source.name,
        "revision": source.revision,
        "endpoint": source.endpoint,
        "directory": str(source.directory(prefix)),
        "stamp": str(source.stamp_path(prefix)),
        "status": str(status_path(source, prefix)),
        "token_file": str(jobs_dir(prefix) / f"{source.key}.token"),
        "uv": uv,
        "full": full,
        "environment": dict(environment or {}),
    }


def question(source: ModelSource, prefix: PurePosixPath) -> tuple[str, str, str | None, str]:
    """What the fact asks about one model: key, folder, stamp, status file."""
    directory, stamp = str(source.directory(prefix)), source.stamp_path(prefix)
    return source.key, directory, str(stamp) if stamp else None, str(status_path(source, prefix))


def job_path(job: Mapping[str, Any], prefix: PurePosixPath) -> str:
    """Where the job file lies."""
    return str(jobs_dir(prefix) / f"{job['key']}.json")


def fetch_command(prefix: PurePosixPath, python: str, code: str, *jobs: Mapping[str, Any]) -> str:
    """The fetcher's command line for a job; for several only with `--check`."""
    words = ["env", f"PYTHONPATH={code}", python, "-m", "hostkit", "fetch"]
    for job in jobs:
        words += ["--job", job_path(job, prefix)]
    return shlex.join(words)


def unit_text(prefix: PurePosixPath, tools_python: str, sources: str) -> str:
    """The systemd unit of all downloads of a prefix, rendered."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.get_template("model-fetch@.service.j2").render(
        prefix=prefix, jobs=jobs_dir(prefix), python=tools_python, sources=sources
    )


def launch(job: Mapping[str, Any], manager: str, prefix: PurePosixPath, command: str) -> str:
    """Shell that starts the job in the background and returns once it shows itself (30 s)."""
    status = shlex.quote(str(job["status"]))
    shown = f"for i in $(seq 60); do test -f {status} && break; sleep 0.5; done"
    if manager == "systemd":
        unit = shlex.quote(unit_name(job["key"]))
        begin = (
            f"systemctl daemon-reload && {{ systemctl reset-failed {unit} 2>/dev/null || true; }} "
            f"&& systemctl enable --quiet {unit} && systemctl restart --no-block {unit}"
        )
    else:
        begin = detached.start_command(
            str(prefix / "run"), f"model-{job['key']}", f"exec nice -n 10 {command}"
        )
    return f"rm -f {status}; {{ {begin}; }} && {{ {shown}; }}"


def progress(model: ModelState) -> str:
    """`12.3 GB of 548.0 GB (2 %), 812.0 MB/s, 11 min left`, or what the fetcher says it does."""
    job = model.job
    if job is None:
        return "the download has not begun"
    if job.state != "fetching" or job.bytes_done is None or not job.bytes_total:
        return job.message or job.state
    percent = 100 * job.bytes_done // job.bytes_total
    share = f"{size(job.bytes_done)} of {size(job.bytes_total)} ({percent} %)"
    rate = f", {size(job.rate)}/s" if job.rate else ""
    left = f", {duration(job.eta_s)} left" if job.eta_s is not None else ""
    note = f"; {job.message}" if job.message else ""
    return f"{share}{rate}{left}{note}"


def size(count: float) -> str:
    """Bytes for people: decimal units, as disks and networks are sold."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Seconds for people: `40 s`, `12 min`, `3 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def unused(
    found: Iterable[str], kept: tuple[ModelSource, ...], prefix: PurePosixPath
) -> tuple[str, ...]:
    """Folders (`NAME/REVISION` under PREFIX/models) that no source of the plan names."""
    folders = {source.directory(prefix) for source in kept}
    return tuple(folder for folder in found if prefix / "models" / folder not in folders)
