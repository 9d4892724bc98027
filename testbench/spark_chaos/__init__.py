"""Streaming queries of `format("ottla")` under faults: tasks, workers, executors and drivers that die at each step."""
