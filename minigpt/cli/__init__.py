"""The command line: a file for each command, and what they share. A command imports what it needs when it runs."""
