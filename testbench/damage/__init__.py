"""Damage at rest: flips, truncations, zeroed ranges and swapped files over every kind of file of a data directory."""
