"""The one error type of hostkit: a single line that a person can act on."""


class HostkitError(Exception):
    """What was expected, what was found and what to do, in one line; the CLI exits 1 with it."""


class StartError(HostkitError):
    """An engine's command can't be executed."""
