"""Statements about attention that correct lecture notes, each with a check or an experiment that decides it."""
