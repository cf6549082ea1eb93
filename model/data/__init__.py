"""Token data: corpora, tokenizers, Megatron indexed datasets, per-token structure, packed batches."""
