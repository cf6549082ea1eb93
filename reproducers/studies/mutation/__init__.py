"""Wrong fixes made of a patch's own lines, tried, and the score of what the checks refuse."""
