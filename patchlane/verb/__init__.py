"""What an audit is asked, from the index to the exit code."""
