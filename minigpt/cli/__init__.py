"""The command line: one file for each command. Each parses, imports inside the function, and calls one function."""
