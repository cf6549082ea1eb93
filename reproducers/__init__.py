"""patchlane's engine: one probe, two trees, one verdict. Each verb is one module."""

import sys

if getattr(sys, "argv", [])[:1] == ["-m"]:  # so it is while python -m looks for the module
    from reproducers import start

    start.check()
