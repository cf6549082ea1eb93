"""What files require: requirements, locks, projects, lists of an environment, and the install lines of scripts."""
