"""The probe: ``from reproducers import probe`` is a reproducer's only import of this project."""

from reproducers.probe.api import CannotTest, Probe, Signature
from reproducers.probe.process import main

__all__ = ["CannotTest", "Probe", "Signature", "main"]
