"""patchlane's engine: one probe, two trees, one verdict. Each verb is one module."""
