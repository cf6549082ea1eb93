"""Patches as mails that ``git am`` takes, alone or as a series."""
