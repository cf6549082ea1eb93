"""What is said of each kind of layer and each kernel path, without torch."""
