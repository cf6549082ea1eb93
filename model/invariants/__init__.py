"""What must hold of a step whatever its loss does: measured on each rank, judged on all."""
