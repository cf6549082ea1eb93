"""patchlane's engine: one probe, two trees, one verdict. Each verb is one module."""

import importlib
import sys

# No import statement: an exported file would carry it along.
if getattr(sys, "argv", [])[:1] == ["-m"]:  # so it is while python -m looks for the module
    importlib.import_module(".base.start", __name__).check()
