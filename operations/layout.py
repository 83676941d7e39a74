"""Where things lie on a host. Pure; every path is absolute and under the prefix."""

from __future__ import annotations

from dataclasses import dataclass

ROOT_PREFIX = "/opt/ddtree"
USER_PREFIX = ".local/share/ddtree"
# on @local a command's environment is that of the person who deploys
NO_TOKEN = ("env", "-u", "HF_TOKEN", "-u", "HUGGING_FACE_HUB_TOKEN")
STAMP = ".complete"  # written last into a folder: without it the folder is not to be trusted


@dataclass(frozen=True)
class Layout:
    """Paths of one run on one host. Hashes are 12 hexadecimal digits and name content."""

    prefix: str
    sources_hash: str
    tools_hash: str
    venv_hash: str
    release: str  # the fingerprint

    @property
    def sources(self) -> str:
        return f"{self.prefix}/sources/{self.sources_hash}"

    @property
    def tools(self) -> str:
        return f"{self.prefix}/tools/{self.tools_hash}"

    @property
    def tools_python(self) -> str:
        return f"{self.tools}/bin/python"

    @property
    def venv(self) -> str:
        return f"{self.prefix}/venvs/{self.venv_hash}"

    @property
    def release_dir(self) -> str:
        return f"{self.prefix}/releases/{self.release}"

    @property
    def current(self) -> str:
        return f"{self.prefix}/current"

    @property
    def previous(self) -> str:
        return f"{self.prefix}/previous"

    @property
    def run(self) -> str:
        return f"{self.prefix}/run"

    @property
    def status(self) -> str:
        return f"{self.run}/status.json"

    def result(self, fingerprint: str) -> str:
        return f"{self.prefix}/results/{fingerprint}.json"

    def hostkit(self, *words: str) -> tuple[str, ...]:
        """The command `hostkit WORDS` of this run's own sources, as words of a command line.

        The Hub's token is not for what it starts.
        """
        return (*NO_TOKEN, f"PYTHONPATH={self.sources}", self.tools_python, "-m", "hostkit", *words)


def default_prefix(uid: int, home: str) -> str:
    """/opt/ddtree for root, a folder of the user's own else."""
    return ROOT_PREFIX if uid == 0 else f"{home.rstrip('/')}/{USER_PREFIX}"
