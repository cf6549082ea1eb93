"""What a pack must satisfy before a person may file it: one module a family of rules, run by ``reproducers.lint``."""
