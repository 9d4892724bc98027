"""Run a whole broker with its clients in simulated time, with faults, and ask for the verdict.

    python examples/simulator.py

The same seed is the same run, on every machine. With a safeguard switched off, runs fail.
"""

from ottla.sim.runner import Options, run_broker

result = run_broker(7, Options(seconds=3))
print("violations:", result.violations)
print("records acknowledged:", result.acknowledged > 0, "- faults:", sum(result.faults.values()) > 0)

again = run_broker(7, Options(seconds=3))
print("the same run:", again.trace_hash == result.trace_hash)
