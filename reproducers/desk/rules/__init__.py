"""The rules that a pack must keep before a person may file it, one module a family; run by ``reproducers.lint``."""
