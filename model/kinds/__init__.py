"""What each kind of layer, and each end of the model, answers about itself, one file a kind. Imports no torch."""
