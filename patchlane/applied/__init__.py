"""Patches in a folder of packages: put in whole or not at all, with the way back beside them."""
