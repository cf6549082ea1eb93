"""NAM56R as other tools load it: files that an export has beside its weights, their imports of one another relative.

They stand alone: each imports torch, numpy, the standard library and its neighbours, ``modeling_nam56r`` transformers
and tokenizers too. What each layer computes is held to the training forward by tests/model/exported/test_network.py.
"""
