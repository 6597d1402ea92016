"""The command line: one file per command. Each command parses, imports what it needs, and calls one function."""
