"""What is asked beyond two arms: of installed environments, other versions, wrong fixes, upstream's own tests."""
