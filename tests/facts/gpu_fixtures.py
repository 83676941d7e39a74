"""Upstream's fixture tests of facts/gpu.py, a folder `gpu.FACT` of JSON files each.

pyinfra-testing patches the process for gevent, so this is not collected with the other tests:
test_gpu_facts.py runs it in a process of its own.

    PYTHONPATH=. python tests/facts/gpu_fixtures.py
"""

from __future__ import annotations

import unittest
from pathlib import Path

from pyinfra_testing.facts import make_fact_tests

for folder in sorted(Path(__file__).parent.glob("gpu.*")):
    name = folder.name.removeprefix("gpu.")
    globals()[f"Test{name}"] = make_fact_tests("facts", folder.name, folder)

if __name__ == "__main__":
    unittest.main()
