"""Real Apache Kafka as oracle and peer: brokers and tools, out of ordinary Maven packages."""
