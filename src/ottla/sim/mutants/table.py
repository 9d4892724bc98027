"""All safeguards that are switched off by a mutant, by name.

Zone: pure. Names of the storage are plain; those of another package begin with the package.
"""

from __future__ import annotations

from typing import Final

from ottla.sim.mutants.clients import CLIENTS
from ottla.sim.mutants.containment import CONTAINMENT
from ottla.sim.mutants.controller import CONTROLLER
from ottla.sim.mutants.coordinators import GROUPS, TRANSACTIONS
from ottla.sim.mutants.mutant import Mutant
from ottla.sim.mutants.replication import REPLICATION
from ottla.sim.mutants.security import SECURITY
from ottla.sim.mutants.storage import STORAGE

_ROOMS: Final = (STORAGE, CONTAINMENT, REPLICATION, CONTROLLER, TRANSACTIONS, GROUPS, CLIENTS, SECURITY)
MUTANTS: Final[dict[str, Mutant]] = {mutant.name: mutant for room in _ROOMS for mutant in room}
