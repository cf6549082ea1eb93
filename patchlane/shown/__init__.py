"""The audit as text, JSON and SARIF."""
