"""Text from a trained model, a few tokens at a time, by ``model.exported``'s network, in torch alone.

Nothing of upstream is imported, so that weights can be used where they are.
"""
