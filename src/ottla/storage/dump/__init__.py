"""The log inspection tool: prints what Apache Kafka's kafka-dump-log prints, line for line.

Zone: real. A tool for people: it reads ordinary files and never runs inside a broker.

    tool      files → items and reports, the entry point
    files     batches of a file, streamed
    log       .log (and cluster snapshots): batches and records
    indexes   .index .timeindex .txnindex
    states    .snapshot and checkpoints
    items     what is found, as text and as JSON
"""
