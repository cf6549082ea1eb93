"""Text from a trained model: its layers with states, a few tokens at a time, in torch alone.

Nothing of upstream is imported, so that weights can be used where they are. What each layer computes is held to the
training forward by tests/model/generation/test_network.py. Modules have the names of a checkpoint's tensors.
"""
