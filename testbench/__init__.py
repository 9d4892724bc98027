"""Real engines and real faults on one machine, to test and measure Ottla against."""
