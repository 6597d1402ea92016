"""Statements from lecture notes on attention, each with a check that decides it."""
