"""One run at a time on a host and prefix.

PREFIX/run/deploy.lock names the process through which a run reaches the host: its session of sshd,
or pyinfra itself on this machine. That process ends with the run, however the run ends, so that no
lock outlives it.
"""

from __future__ import annotations

import getpass
import os
import shlex
import socket
import sys
import time

from pyinfra.api.facts import FactBase
from pyinfra.context import host

from operations.run import Run, stop

# field PID N: a field of /proc/PID/stat, counted behind the state; nothing for what has ended
SCRIPT = """\
field() { sed -n 's/.*) [^ZX] //p' /proc/$1/stat 2>/dev/null | cut -d' ' -f$2; }
mine=$PPID
while case $(cat /proc/$mine/comm) in *sh|sudo|su) ;; *) false;; esac; do
  mine=$(field $mine 1)
done
exec 9>>$lock
flock 9
read pid born who <$lock
if [ -n "$born" ] && [ "$pid" != $mine ] && [ "$(field $pid 19)" = "$born" ]; then
  echo "$pid $who"
else
  echo "$mine $(field $mine 19) $me" >$lock
fi
"""


class OtherRun(FactBase[tuple[int, str] | None]):
    """The run that is at work in `run_dir`: (process on the host, who); None: it is ours now."""

    def command(self, run_dir: str, me: str) -> str:
        lock = shlex.quote(f"{run_dir}/deploy.lock")
        return (
            f"mkdir -p {shlex.quote(run_dir)} && ( lock={lock}; me={shlex.quote(me)}\n"
            f"{SCRIPT}) 2>/dev/null; true"
        )

    def process(self, output: list[str]) -> tuple[int, str] | None:
        pid, _, who = (output[0] if output else "").partition(" ")
        return (int(pid), who) if pid.isdigit() else None


def take(run: Run) -> bool:
    """Takes the host for a run that changes it. False: another one is at work, this host stops."""
    changes = run.phases - {"preflight", "kit"} or run.probe or run.rollback
    if "--dry" in sys.argv or not changes:
        return True
    me = f"{getpass.getuser()}@{socket.gethostname()} (pid {os.getpid()}) since {_now()}"
    other = host.get_fact(OtherRun, run_dir=run.layout.run, me=me)
    if other is None:
        return True
    pid, who = other
    stop(
        f"expected no other run on this host and prefix, found one by {who}; run again when it has "
        f"ended (kill {pid} on the host ends what is left of it)"
    )
    return False


def _now() -> str:
    return time.strftime("%H:%M %Z")
