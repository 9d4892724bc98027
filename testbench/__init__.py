"""Real engines and real faults on one machine: what the tests and benchmarks measure Ottla against."""
