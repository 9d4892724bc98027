"""The log inspection tool: prints what Apache Kafka's kafka-dump-log prints, line for line.

Zone: real. A tool for people: it reads ordinary files and never runs inside a broker.

    tool      files → items and reports, the entry point; .snapshot and checkpoints
    files     batches of a file, streamed
    log       .log (and cluster snapshots): batches and records
    indexes   .index .timeindex .txnindex
    items     the items found, as text and as JSON
"""
