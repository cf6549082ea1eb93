"""What a reproducer uses of this project; ``from reproducers import probe`` is its only import of it."""

from reproducers.probe.api import CannotTest, Probe, Signature
from reproducers.probe.process import main

__all__ = ["CannotTest", "Probe", "Signature", "main"]
