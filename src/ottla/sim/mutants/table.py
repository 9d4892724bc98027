"""All safeguards that are switched off by a mutant, by name.

Zone: pure.
"""

from __future__ import annotations

from typing import Final

from ottla.sim.mutants.controller import CONTROLLER
from ottla.sim.mutants.coordinators import GROUPS, TRANSACTIONS
from ottla.sim.mutants.mutant import Mutant

MUTANTS: Final[dict[str, Mutant]] = {mutant.name: mutant for mutant in (*CONTROLLER, *TRANSACTIONS, *GROUPS)}
