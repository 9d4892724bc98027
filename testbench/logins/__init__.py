"""Logins of seven client libraries at Ottla and at Apache Kafka, and the errors that they report, as a table."""
