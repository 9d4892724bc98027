"""Safeguards that a simulated run can switch off: one mutant of the source for each.

Zone: pure. `mutant` has their form, `table` lists them, `ablation` applies one.
"""
