"""Corpora, readers and tokenizers."""
