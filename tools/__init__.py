"""Scripts for people who work on Ottla: numbers of the source, generated pages, drawings."""
