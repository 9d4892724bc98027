"""Real Apache Kafka as oracle and peer: brokers and tools from Maven packages."""
