"""Crash points: a power cut after every single change of a simulated drive, and what recovery makes of it."""
