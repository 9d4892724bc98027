"""The settings of entities other than topics and brokers: users, client ids, addresses, groups, client metrics.

Zone: deterministic. `entity_reader` reads them from the metadata store, `ottla.cluster.config_writer` changes them
there. An entity is named by its path below /config, as in notifications: `users/ann`, `users/ann/clients/app`.
"""
