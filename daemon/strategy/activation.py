"""What activating a plan means in the store."""

from __future__ import annotations

from daemon.strategy.plans import Plans
from daemon.strategy.rules import Rules


def activate(plans: Plans, rules: Rules, name: str, for_s: float | None, by: str, reason: str = "") -> None:
    """What activating means in the store; the offline command does this alone, and the next start follows it.

    Raises: NotFound, InvalidParameter.
    """
    plans.get(name)
    if for_s is None and not any(rule.enabled for rule in rules.all()):
        plans.set_default(name, by)
        rules.release(by)
    else:
        rules.set_override(name, for_s, reason, by)
