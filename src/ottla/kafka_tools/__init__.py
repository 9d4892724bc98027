"""Apache Kafka's command line tools by their own names: options, output text and exit codes as scripts know them.

Zone: pure. This module is only the name; `main` runs the tools.
"""
