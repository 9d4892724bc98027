"""Crash points: a power cut after every single change of a simulated drive, and the recovery from it."""
