"""Chooses what runs on a host, and says why: `choose(machine, wanted) -> ServingPlan`."""

from __future__ import annotations

from operations.plan_errors import PlanError
from operations.plan_model import Arm, Choice, Launch, ModelRef, ServingPlan

__all__ = ["Arm", "Choice", "Launch", "ModelRef", "PlanError", "ServingPlan"]
