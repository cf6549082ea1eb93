"""Likelihoods of a checkpoint, and the tasks of lm-evaluation-harness."""
