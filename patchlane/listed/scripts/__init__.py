"""Install lines of shell scripts and Dockerfiles."""
