"""Errors, exit codes, files, words and how a command ends: of the audit and of the engine. Imports nothing of ours."""
