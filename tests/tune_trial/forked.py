"""A workshop whose runs are forked, as that of `unidle tune run`."""

from __future__ import annotations

from unidle.tune.trial.forks import fork_plan
from unidle.tune.trial.marks import StepWatch
from unidle.tune.trial.workshop import Workshop


def with_plan(shop: Workshop) -> Workshop:
    """The workshop, after one run of its program in a process of its own."""
    modules = shop.scratch / "modules"
    done = shop.run(shop.copy(()), {"TUNE_TRIAL_MODULES": str(modules)}, StepWatch(shop.scratch))
    assert not done.failed
    shop.plan = fork_plan(shop.command, modules, (shop.tree, shop.scratch))
    return shop
