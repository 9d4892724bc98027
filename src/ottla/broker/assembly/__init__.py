"""The composition root of a broker: every object of it is created here, and gets what it needs as arguments.

Zone: deterministic. One module per wing; `root` joins them. The order of construction is the order of dependence:

    foundation     effects, purgatory, logs, the cluster's view, dispatch
    metadata       the metadata store, the controller's fence, elections, settings
    transactions   the transaction coordinator, the verifier of other coordinators
    groups         the group coordinator
    replication    partitions, fetchers, the changes of ISRs
    handlers       the handlers of all requests
    metrics        what /metrics shows

Four cycles are left, in which an object needs another one that needs it: the view of the cluster and what follows a
change of it, the fence and the ISR changes that a new controller gets again, the store's session and the membership,
the logs and the replicas that go out of service with their directory. A `Forward` is the one's half of each. The
simulator, and `ottla.sim.reorder`, which leaves out the metadata store, build through the same functions.
"""
