"""Run the arms in child processes, collect their observations, and rule on them."""
