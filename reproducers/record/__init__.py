"""The files that a person writes, as frozen models: pack.yaml and needs.yaml."""
