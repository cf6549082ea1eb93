"""Which known bugs of the LLM training stack an environment has: what `uvx patchlane` installs, and no more."""
