"""Stand-ins that let the real upstream code run without a GPU."""
