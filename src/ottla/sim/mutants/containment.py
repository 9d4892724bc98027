"""The safeguards against defects in requests and in callbacks of alarms, and what switches each off.

Zone: pure.
"""

from __future__ import annotations

from typing import Final

from ottla.sim.mutants.mutant import Edit, Mutant

_CONTAINMENT: Final = "ottla.broker.containment"
_RELEASED: Final = "where = release_stack(error)"
"""The first statement about a defect that is contained."""

CONTAINMENT: Final = (
    Mutant(
        "containment.contains",
        "A defect fails its request only. Off: it stops the broker.",
        (
            Edit(_CONTAINMENT, "Containment.contain_defect", _RELEASED, f"raise error\n        {_RELEASED}"),
            Edit(_CONTAINMENT, "Containment.refuse_elements", "if isinstance(error, HalfChanged):", "if True:"),
            Edit(_CONTAINMENT, "Containment.contain_callback", _RELEASED, f"raise error\n        {_RELEASED}"),
        ),
    ),
    Mutant(
        "containment.stops_when_half_changed",
        "A defect inside a change stops the broker. Off: it fails its request, as any other.",
        (
            Edit(
                _CONTAINMENT,
                "Containment.contain_callback",
                _RELEASED,
                f"if isinstance(error, HalfChanged):\n            return\n        {_RELEASED}",
            ),
            Edit(
                "ottla.broker.dispatch",
                "Dispatch.on_frame",
                "except HalfChanged:\n            raise",
                "except HalfChanged as error:\n"
                "            self._network.close_connection(slot.peer, str(error))\n"
                "            return Gate.WAIT",
            ),
        ),
    ),
)
