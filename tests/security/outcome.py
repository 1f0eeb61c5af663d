"""The list of the attacks."""

import typing


class Outcome(typing.NamedTuple):
    succeeded: bool
    evidence: str


class Attack(typing.NamedTuple):
    finding: str  # the number by which docs/security.md knows the hole; "-" for an attack that never succeeded
    name: str
    run: typing.Callable
    open_because: str | None  # why the attack is known to succeed


ATTACKS = []


def attack(finding, name, open_because=None):
    """Registers a function that makes an attack on a stage, and returns its Outcome. The function asserts whatever must
    hold for the attack to show anything: that the victims were there, and that the right ranks can still work. A hole
    that is open has its reason here and in docs/security.md; the attack must then succeed until both say otherwise."""
    def register(function):
        ATTACKS.append(Attack(finding, name, function, open_because))
        return function
    return register


def of_module(name):
    """Returns the attacks whose functions are in a module."""
    return [one for one in ATTACKS if one.run.__module__ == name]
