"""patchlane's engine: one probe, two trees, one verdict. Each verb is one module."""

import importlib
import sys

if getattr(sys, "argv", [])[:1] == ["-m"]:  # so it is while python -m looks for the module
    importlib.import_module(".start", __name__).check()  # no import statement: an exported file would carry it along
