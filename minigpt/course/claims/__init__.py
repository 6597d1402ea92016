"""Statements about attention that correct common mistakes, each with a check or an experiment that decides it."""
