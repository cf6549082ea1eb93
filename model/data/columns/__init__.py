"""The structure of code, token by token."""
