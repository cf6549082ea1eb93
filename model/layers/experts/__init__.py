"""Experts: one kernel between their products, weight gradients added in place."""
