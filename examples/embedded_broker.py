"""A broker inside the program, for tests and notebooks: no process to start, no port to choose.

$ python examples/embedded_broker.py
"""

from ottla.client import Admin, ClientConfig, Cluster, NewTopic, Producer
from ottla.server.embedded import EmbeddedBroker

with EmbeddedBroker(config={"auto.create.topics.enable": "false"}) as broker:
    with Cluster(ClientConfig(bootstrap_servers=broker.bootstrap)) as cluster:
        Admin(cluster).create_topics([NewTopic("orders", partitions=3)])
    with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
        print(producer.send("orders", b"tea", partition=2).result(10).partition)
