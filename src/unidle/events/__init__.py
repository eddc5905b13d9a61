"""The vocabulary of the log: events, and the marks that ranks leave."""
