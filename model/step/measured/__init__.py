"""What a step measures of itself, on the device until it is read once."""
