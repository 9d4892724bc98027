"""Tables that take the batches of a streaming query, each batch once, however often it is run.

Zone: real. Tasks write files that the table does not name yet; one commit adds the files of a batch, with its number.
The caller decides which attempt's files are those of a batch.
"""
