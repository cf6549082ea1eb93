"""Verdicts, words and the ends of a command line, for every room. Imports no other room."""
