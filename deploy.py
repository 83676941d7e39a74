"""From bare GPU servers to a measured speculative-decoding service. Reads as a table of contents.

pyinfra inventories/b300.py deploy.py --dry --diff     what would change
pyinfra inventories/b300.py deploy.py -y               do it
... --data only=serve                                  a part (operations/phases.py)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # so that it runs from any folder

from operations import (
    bench,
    lock,
    models,
    outcome,
    patches,
    preflight,
    probe,
    run,
    serve,
    stack,
    tools,
    units,
)

this = run.begin()  # facts, wanted, plan; None when this host was stopped, with one line
if this and "preflight" in this.phases and not preflight.passes(this):
    this = None

if this and not lock.take(this):  # another run is at work here
    this = None

if this and not this.rollback and not serve.published(this):
    this = None

if this and this.rollback:
    serve.roll_back(name="serve: roll back", run=this, to=this.rollback)

elif this:
    do = this.phases
    if do - {"preflight", "kit"} or this.probe:
        tools.install(name="tools: sources, uv, tools venv", run=this)
    if "models" in do:  # the longest job first: it runs beside all that follows
        models.start(name="models: start what is missing", **this.models)
    if "stack" in do:
        stack.install(name="stack: the engine's venv", run=this)
        preflight.after_stack(name="preflight: Triton's ptxas", run=this)
    if "patches" in do:
        patches.apply(name="patches: DDTree in the engine's venv", **this.patches)
    if this.probe:
        probe.measure(name="probe: the GPUs with the installed stack", run=this)
    if "units" in do:
        units.publish(name="units: release, link and service", run=this)
    if "models" in do:
        models.wait(name="models: wait and verify", plan=this.plan, verify=this.verify)
        models.prune(name="models: old revisions", plan=this.plan, remove=this.prune)
    if "serve" in do:
        serve.converge(name="serve: start, and wait until it is ready", run=this)
    if "bench" in do:
        bench.measure(name="bench: measure the arms", run=this)
        if this.gate:
            serve.gate(name="serve: back to the release before if the gate fails", run=this)
    outcome.announce(this)  # tables, report, kit: on this machine, when all hosts are done
