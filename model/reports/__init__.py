"""Reports, comparisons and pictures of kept runs."""
