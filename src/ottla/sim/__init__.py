"""The simulated shell: event heap, virtual clock, faults, workloads, checkers.

Zone: real.
"""
